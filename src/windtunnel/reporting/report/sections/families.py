"""A section per family of assessments: a table of its headline numbers, one chart that compares them, a part for each.

A family is a row of FAMILIES: which assessments are its own, told from what their metadata holds, and the columns of its
table. What no row claims goes to the family of its kind, so an assessment of a new sort is shown without a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import AssessmentKind
from windtunnel.evaluation.summary.evidence import in_latent_space
from windtunnel.evaluation.summary.headline import ACCURACY
from windtunnel.params.outcome import Report as Options
from windtunnel.reporting.report.charts.plots import Bar, bars
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.guard import guarded
from windtunnel.reporting.report.model import Block, Chart, Section, Table, Text
from windtunnel.reporting.report.sections.assessment import assessment_section
from windtunnel.reporting.report.sections.side_by_side import side_by_side_section
from windtunnel.reporting.report.words import interval, number, percent, region_words, semantics, short

_WORST = (
    "An accuracy here is what was left unbroken by what ran: an upper bound of the true robust accuracy, never a proof."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column. form: `rate` with its interval, `share` without one, `plain` for what is no share."""

    words: str
    metric: str
    form: Literal["rate", "share", "plain"]

    def show(self, artifacts: Artifacts) -> str:
        """The metric of one assessment as text; `-` where it has none."""
        metrics = artifacts.metrics
        if self.metric not in metrics:
            return "-"
        if self.form == "rate":
            return percent(metrics, self.metric)
        if self.form == "share":
            return f"{number(metrics, self.metric):.1%}"
        value = metrics[self.metric]
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return f"{number(metrics, self.metric):.4g}" if plain else short(value)


@dataclass(frozen=True, slots=True)
class Family:
    """One section. A column that no assessment fills is left out. `beside`: columns of a second table, of what the first rests on."""

    title: str
    words: str
    role: str
    owns: Callable[[Artifacts], bool]
    columns: tuple[Column, ...]
    beside: tuple[Column, ...] = ()


def _kind(kind: AssessmentKind) -> Callable[[Artifacts], bool]:
    return lambda a: bool(a.metadata["assessment_kind"] == kind.value)


def _has(metric: str) -> Callable[[Artifacts], bool]:
    return lambda a: metric in a.metrics


def _columns(form: Literal["rate", "share", "plain"], **metrics: str) -> tuple[Column, ...]:
    return tuple(Column(words.replace("_", " "), metric, form) for words, metric in metrics.items())


_ATTACK = _columns("rate", accuracy="adversarial_accuracy", success="attack_success_rate")

# In the order of telling an assessment's family; the order on the page is that of _ORDER.
FAMILIES = (
    Family(
        "Queries: black-box attacks, counted", _WORST, "broken", _has("queries_total"),
        (*_ATTACK, *_columns("plain", queries_mean="queries_succ_mean", median="queries_succ_median", in_all="queries_total",
                             median_L2="l2_dists_succ_median")),
    ),
    Family(
        "Sweeps: accuracy against epsilon", _WORST, "broken", _has("accuracy_curve"),
        (*_columns("plain", verdict="verdict", median_critical_epsilon="median_critical_epsilon", area_under_curve="area_under_curve"),
         *_columns("share", drop_at_the_median_epsilon="accuracy_drop_at_median_epsilon", never_flips="never_flips",
                   confidence_earliest="confidence_earliest", confidence_longest="confidence_longest")),
    ),
    Family(
        "Latent space: changes that stay on the data manifold",
        "How the classifier holds where a generative model moves along the data. These numbers are as good as that model, and "
        "no bound of anything in pixels.",
        "corrupted", in_latent_space,
        (*_columns("rate", LRA="lra", LGA="lga"), *_columns("share", LLNA="llna_reconstruction"),
         *_columns("plain", LARS="lars", LAGS="lags"), *_columns("rate", LARA="lara", LAGA="laga")),
        _columns("plain", decay_epsilon="decay_epsilon", reconstruction_error="reconstruction_error", code_norm="code_norm",
                   Frechet_distance="frechet_distance", of_real_images="frechet_distance_of_real",
                   severity_scaled_L2="adversarial_severity_scaled_l2", severity_Linf="adversarial_severity_linf"),
    ),
    Family(
        "Verification: what was proved",
        "Verified: no change in the budget can alter the right answer. Falsified: a counter-example is known, or the clean answer "
        "is wrong. Unknown says nothing about the model.",
        "certified", _kind(AssessmentKind.FORMAL_VERIFICATION),
        (*_columns("rate", certified="certified_accuracy"),
         *_columns("share", falsified="falsified_rate", unknown="unknown_rate", error="error_rate", abstained="abstain_rate"),
         *_columns("plain", mean_radius="average_certified_radius", out_of_time="timeouts", mean_seconds="mean_runtime")),
    ),
    Family(
        "Corruptions: the average case",
        "Everyday disturbances, drawn at random: an average over them, which bounds no worst case.",
        "corrupted", _kind(AssessmentKind.STATISTICAL_SAMPLING),
        (*_columns("rate", accuracy="corrupted_accuracy", mCE="mce", relative_mCE="relative_mce"),
         *_columns("share", mean_error="mean_corruption_error"), *_columns("plain", worst_corruption="worst_corruption"),
         *_columns("share", its_mean_accuracy="worst_corruption_accuracy", never_broken="never_broken")),
    ),
    Family(
        "Attacks: what was broken", _WORST, "broken", lambda a: True,
        (*_ATTACK, *_columns("plain", median_distance="median_distance", passes_forward="mean_forward_passes",
                             backward="mean_backward_passes")),
    ),
)  # fmt: skip
_ORDER = ("Attacks", "Queries", "Sweeps", "Verification", "Corruptions", "Latent space")


def family_of(artifacts: Artifacts) -> Family:
    """The family whose section shows an assessment."""
    return next(family for family in FAMILIES if family.owns(artifacts))


def family_sections(found: Found, options: Options) -> Iterator[Section]:
    """The section of each family that has assessments; the samples side by side stand with the first worst-case one."""
    pending = side_by_side_section(found, options)
    for title in _ORDER:
        family = next(f for f in FAMILIES if f.title.startswith(title))
        mine = [a for a in found.assessments if family_of(a) is family]
        if not mine:
            continue
        children = [guarded(a.name, partial(assessment_section, a, found, options)) for a in mine]
        if pending and any(a.metadata["assessment_kind"] != AssessmentKind.STATISTICAL_SAMPLING for a in mine):
            children.insert(0, pending)
            pending = None
        overview = guarded(family.title, partial(_overview, family, mine))
        yield replace(overview, children=tuple(children))


def _overview(family: Family, mine: list[Artifacts]) -> Section:
    blocks: list[Block] = [Text(family.words)]
    columns, beside = (
        [c for c in some if any(c.metric in a.metrics for a in mine)] for some in (family.columns, family.beside)
    )
    header = ("assessment", "algorithm", "region", *(c.words for c in columns))
    rows = tuple((a.name, _algorithm(a), region_words(a), *(c.show(a) for c in columns)) for a in mine)
    blocks.append(Table("The assessments and their headline numbers", header, rows))
    if beside:
        rows = tuple((a.name, *(c.show(a) for c in beside)) for a in mine)
        blocks.append(
            Table(
                "What these numbers rest on, and their conventional counterparts",
                ("assessment", *(c.words for c in beside)),
                rows,
            )
        )
    if len(mine) > 1 and (chart := _comparison(family, mine)):
        blocks.append(chart)
    return Section(family.title, tuple(blocks))


def _algorithm(artifacts: Artifacts) -> str:
    threat = str(semantics(artifacts).get("threat_model", ""))
    seen = {"black_box_score": ", sees scores", "black_box_decision": ", sees answers"}.get(threat, "")
    return f"{artifacts.metadata['library']} {artifacts.metadata['algorithm']}{seen}"


def _comparison(family: Family, mine: list[Artifacts]) -> Chart | None:
    """The accuracy that stands for each assessment, with its interval."""
    rows = []
    for a in mine:
        key = next((k for k in ACCURACY if k in a.metrics and k != "clean_accuracy"), None)
        if key:
            rows.append(
                Bar(f"{a.name}, {region_words(a)}", number(a.metrics, key), family.role, interval(a.metrics, key))
            )
    if len(rows) < 2:
        return None
    clean = number(mine[0].metrics, "clean_accuracy")
    reference = (clean, f"clean {clean:.1%}") if "clean_accuracy" in mine[0].metrics else None
    alt = "; ".join(f"{row.label}: {row.value:.1%}" for row in rows)
    words = "certified accuracy" if family.role == "certified" else "accuracy"
    return Chart(bars(rows, f"{words}, 95 % intervals", alt, reference), f"{family.title.split(':')[0]} compared")
