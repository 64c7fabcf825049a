"""A section per question: a table of the assessments that answer it, the charts that compare them, what limits them.

A family is a row of FAMILIES: the question its assessments answer, which assessments are its own (told from what their
metadata holds) and the columns of its table. What no row claims goes to the family of its kind, so an assessment of a new
sort is shown without a line here. An assessment is a row of the table; its details are for who searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from windtunnel.assessments.figures.axes import HALF
from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import AssessmentKind
from windtunnel.evaluation.summary.evidence import in_latent_space
from windtunnel.params.outcome import Report as Options
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.guard import guarded
from windtunnel.reporting.report.model import Block, Chart, Section, Table, Text
from windtunnel.reporting.report.sections.assessment import assessment_section as details
from windtunnel.reporting.report.sections.assessment import essential_blocks, limits_table
from windtunnel.reporting.report.sections.breaks import damage_blocks
from windtunnel.reporting.report.sections.certificates import certificate_blocks
from windtunnel.reporting.report.sections.side_by_side import side_by_side_blocks
from windtunnel.reporting.report.words import Row, budget, number, percent, region, region_words, semantics, short

BROKEN = "What breaks it, and at what cost?"
VERIFIED_SECTION = "What is verified, and by which method?"
AVERAGE = "How does it do under everyday disturbances?"
MANIFOLD = "How does it do along the data manifold?"
_WORST = (
    "An accuracy here is the share of all samples that what ran left unbroken: an upper bound of the true robust accuracy, never "
    "a certificate. Success is the share of the samples right at first that were broken. Compare rows of one budget only."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column. form: `rate` with its interval, `share` without one, `plain` for what is no share.

    `means`: what an abbreviation stands for, said below the table where it first appears.
    """

    words: str
    metric: str
    form: Literal["rate", "share", "plain"]
    means: str = ""

    def show(self, artifacts: Artifacts, confidence: float | None = None) -> str:
        """The metric of one assessment as text; `-` where it has none. `confidence`: of what it broke, in the wrong answer."""
        metrics: Row = artifacts.metrics
        if self.metric == _COST:
            return _cost(metrics)
        if self.metric == _CONFIDENCE:
            return "-" if confidence is None else f"{confidence:.1%}"
        if self.metric not in metrics:
            return "-"
        if self.form == "rate":
            return percent(metrics, self.metric)
        if self.form == "share":
            return f"{number(metrics, self.metric):.1%}"
        value = metrics[self.metric]
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return f"{number(metrics, self.metric):.4g}" if plain else short(value)


def _cost(metrics: Row) -> str:
    if "queries_succ_median" in metrics:
        return f"{number(metrics, 'queries_succ_median'):.0f} queries (median)"
    if "mean_forward_passes" not in metrics:
        return "-"
    forward, backward = number(metrics, "mean_forward_passes"), number(metrics, "mean_backward_passes")
    return f"{forward:.0f} + {backward:.0f} passes" if backward else f"{forward:.0f} passes"


@dataclass(frozen=True, slots=True)
class Family:
    """What assessments of one kind answer. A column that no assessment fills is left out. `beside`: columns of a second table, of
    what the first rests on.
    """

    question: str
    owns: Callable[[Artifacts], bool]
    columns: tuple[Column, ...]
    beside: tuple[Column, ...] = ()


def _kind(kind: AssessmentKind) -> Callable[[Artifacts], bool]:
    return lambda a: bool(a.plain["assessment_kind"] == kind.value)


_CONFIDENCE = "confidence when wrong"  # of the tensors, no metric of metadata.json
_COST = "cost"  # of several metrics
_BROKEN = (
    Column("accuracy left", "adversarial_accuracy", "rate"),
    Column("success", "attack_success_rate", "share"),
    Column("median distance", "median_distance", "plain"),
    Column("confidence when wrong", _CONFIDENCE, "share"),
    Column("cost a sample", _COST, "plain"),
)  # fmt: skip
# In the order of telling an assessment's family; the order on the page is that of QUESTIONS.
FAMILIES = (
    Family(
        MANIFOLD, in_latent_space,
        (
            Column("LRA", "lra", "rate", "LRA: accuracy on the samples as the generative model reconstructs them"),
            Column("LGA", "lga", "rate", "LGA: accuracy on images that it generates"),
            Column("LLNA", "llna_reconstruction", "share", "LLNA: accuracy under random noise on the codes of the samples"),
            Column("LARA", "lara", "rate",
                   "LARA and LAGA: share of reconstructed and of generated images whose answer no change of the code within the "
                   "bound turned"),
            Column("LAGA", "laga", "rate"),
            Column("LARS", "lars", "plain",
                   "LARS and LAGS: mean size of the smallest change of a code that turns the answer (larger is better)"),
            Column("LAGS", "lags", "plain"),
        ),
        (
            Column("decay epsilon", "decay_epsilon", "plain", "decay epsilon: noise whose decayed code is the centre of the searches"),
            Column("reconstruction error", "reconstruction_error", "plain"),
            Column("norm of the codes", "code_norm", "plain", "norm of the codes: 1 for draws of the prior"),
            Column("Frechet distance", "frechet_distance", "plain"),
            Column("of real images", "frechet_distance_of_real", "plain",
                   "Frechet distance: of generated images to real ones, and of real images to each other"),
            Column("severity, scaled L2", "adversarial_severity_scaled_l2", "plain",
                   "severity: mean size of the smallest change of the pixels that was found"),
            Column("severity, Linf", "adversarial_severity_linf", "plain"),
        ),
    ),
    Family(
        VERIFIED_SECTION, _kind(AssessmentKind.FORMAL_VERIFICATION),
        (
            Column("certified", "certified_accuracy", "rate"), Column("falsified", "falsified_rate", "share"),
            Column("unknown", "unknown_rate", "share"), Column("error", "error_rate", "share"),
            Column("abstained", "abstain_rate", "share"), Column("mean radius", "average_certified_radius", "plain"),
            Column("mean radius, at least", "average_certified_radius_at_least", "plain"),
            Column("out of time", "timeouts", "plain"), Column("seconds a sample", "mean_runtime", "plain"),
        ),
    ),
    Family(
        AVERAGE, _kind(AssessmentKind.STATISTICAL_SAMPLING),
        (
            Column("mean accuracy", "corrupted_accuracy", "rate"),
            Column("mCE", "mce", "rate",
                   "mCE, mean corruption error: errors relative to those of a reference model; 100 % is as many as that one makes"),
            Column("relative mCE", "relative_mce", "rate", "relative mCE: the same of the errors beyond those without corruption"),
            Column("worst corruption", "worst_corruption", "plain"), Column("its mean accuracy", "worst_corruption_accuracy", "rate"),
            Column("never broken", "never_broken", "share", "never broken: right under every corruption that ran"),
        ),
    ),
    Family(BROKEN, lambda a: True, _BROKEN),
)  # fmt: skip
QUESTIONS: dict[str, str] = {
    BROKEN: _WORST,
    VERIFIED_SECTION: "Certified: no change within the budget can alter the right answer. Falsified: a counter-example is known, or the "
    "clean answer is wrong. Unknown says nothing about the model, only about the verifier and its time.",
    AVERAGE: "Disturbances drawn at random: an average over them, which bounds no worst case.",
    MANIFOLD: "Changes along the data, as a generative model knows it. These numbers are as good as that model, and no bound of "
    "anything in pixels.",
}


def family_of(artifacts: Artifacts) -> Family:
    """The family whose question an assessment answers."""
    return next(family for family in FAMILIES if family.owns(artifacts))


def family_sections(found: Found, options: Options) -> Iterator[Section]:
    """The section of each question that an assessment answers."""
    for question, words in QUESTIONS.items():
        mine = [a for a in found.assessments if family_of(a).question == question]
        if mine:
            yield guarded(question, partial(_section, question, words, mine, found, options))


def _section(question: str, words: str, mine: Sequence[Artifacts], found: Found, options: Options) -> Section:
    blocks: list[Block] = [Text(words), *_overview(mine, found)]
    if question == BROKEN:
        blocks += damage_blocks(mine, found)
    if question == VERIFIED_SECTION:
        blocks += certificate_blocks(mine, found)
    essential = [block for a in mine for block in essential_blocks(a, found)]
    # Charts first: two narrow ones stand beside each other, which a grid between them would forbid.
    blocks += sorted(
        essential,
        key=lambda block: (not isinstance(block, Chart), isinstance(block, Chart) and block.scene.width > HALF),
    )
    if question == BROKEN:
        blocks += side_by_side_blocks(found, options)
    blocks += limits_table(mine)
    children = tuple(guarded(a.name, partial(details, a, found, options)) for a in mine)
    return Section(question, tuple(blocks), children)


def _overview(mine: Sequence[Artifacts], found: Found) -> Iterator[Block]:
    columns = [
        c for c in family_of(mine[0]).columns if any(c.show(a, found.confidence.get(a.name)) != "-" for a in mine)
    ]
    header = ("assessment", "algorithm", "region", "n", *(c.words for c in columns))
    rows = tuple(
        (a.name, _algorithm(a), region_words(a), str(len(a.sample_names)),
         *(c.show(a, found.confidence.get(a.name)) for c in columns))
        for a in sorted(mine, key=partial(_place, found))
    )  # fmt: skip
    yield Table("The assessments, those of one budget together", header, rows)
    if means := [c.means for c in columns if c.means]:
        yield Text("; ".join(means) + ".")
    if beside := [c for c in family_of(mine[0]).beside if any(c.metric in a.metrics for a in mine)]:
        cells = tuple((a.name, *(c.show(a, None) for c in beside)) for a in mine)
        words = "What these numbers rest on, and their conventional counterparts"
        yield Table(words, ("assessment", *(c.words for c in beside)), cells)
        yield Text("; ".join(c.means for c in beside if c.means) + ".")
    if any(c.metric == _COST for c in columns):
        yield Text("Cost: forward + backward passes of the model for a sample, or queries of a success. Confidence when wrong: the "
                   "median softmax of the wrong answer over the samples broken.")  # fmt: skip


def _place(found: Found, artifacts: Artifacts) -> int:
    """The place of an assessment's budget among those of the sandwich; last where it has none."""
    layers = found.summary.metrics.get("sandwich") if found.summary else None
    budgets = [budget(row) for row in layers if isinstance(row, dict)] if isinstance(layers, list) else []
    where = region(artifacts)
    mine = budget(where) if {"norm", "epsilon"} <= where.keys() else ""
    return budgets.index(mine) if mine in budgets else len(budgets)


def _algorithm(artifacts: Artifacts) -> str:
    threat = str(semantics(artifacts).get("threat_model", ""))
    seen = {"black_box_score": ", sees scores", "black_box_decision": ", sees answers"}.get(threat, "")
    return f"{artifacts.plain['library']} {artifacts.plain['algorithm']}{seen}"
