"""From the artifacts on disk to a Report. Works on any set of directories; what is missing is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import Json, Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json
from windtunnel.report.collect import Found, collect, figures_of
from windtunnel.report.glossary import GLOSSARY
from windtunnel.report.model import Finding, Layer, Report, SampleRow, Section, Table
from windtunnel.summary.headline import ACCURACY

MAX_SAMPLE_ROWS = 1000
_KIND_TITLE = {
    "empirical_attack": "Attacks and sweeps: what was broken",
    "formal_verification": "Verification: what was proved",
    "statistical_sampling": "Corruptions and sampling: the average case",
}

# What the model and data card shows of each file.
_FACTS = (
    (
        "data/dataset.json",
        ("source", "n", "shape", "class_names", "labelled", "value_range_of_source", "samples", "digest"),
    ),
    ("model/model.json", ("source", "architecture", "recipe", "factory", "original", "sha256")),
)


def build_report(reports: Path, title: str, names: Iterable[str] | None = None) -> Report:
    """The report on the artifacts below `reports` (see `collect`)."""
    found = collect(reports, names)
    failures = _failures(found.summary)
    warnings = _sanity_warnings(found.sanity)
    findings = (
        *(Finding("invalid", f"This number must not be believed: {line}") for line in failures),
        *_headlines(found),
        *(Finding("warning", line) for line in (*_page_one_caveats(found), *warnings[:3], *found.problems)),
    )
    sections = [_subject_section(reports, found)]
    if found.clean is not None:
        sections.append(_clean_section(found.clean))
    for kind, heading in _KIND_TITLE.items():
        mine = [a for a in found.assessments if a.metadata["assessment_kind"] == kind]
        if mine:
            sections.append(Section(heading, tables=(_overview(mine),)))
            sections += [_assessment_section(a) for a in mine]
    if found.sanity is not None:
        sections.append(_sanity_section(found.sanity))
    sections.append(_reproducibility(found))
    samples, note = _samples(found.summary)
    return Report(
        title=title,
        subtitle=_subtitle(found),
        verdict=_verdict(found.summary, failures),
        findings=findings,
        layers=tuple(_layers(found.summary)),
        sections=tuple(sections),
        samples=samples,
        samples_note=note,
        glossary=GLOSSARY,
    )


def _kwargs(artifacts: Artifacts) -> Mapping[str, Json]:
    return cast(Mapping[str, Json], artifacts.metadata["kwargs"])


def _failures(summary: Artifacts | None) -> list[str]:
    return [str(line) for line in cast(list[Json], _kwargs(summary)["hard_failures"])] if summary else []


def _sandwich(summary: Artifacts | None) -> list[Mapping[str, Json]]:
    return cast(list[Mapping[str, Json]], summary.metrics["sandwich"]) if summary else []


def _number(row: Mapping[str, Json], key: str, default: float = 0.0) -> float:
    return float(str(row[key])) if key in row else default


def _budget(row: Mapping[str, Json]) -> str:
    return f"{row['norm']} ≤ {_number(row, 'epsilon'):.4g}" if "epsilon" in row else f"{row['norm']}, no bound"


def _layers(summary: Artifacts | None) -> Iterable[Layer]:
    for row in _sandwich(summary):
        assert summary is not None
        clean = _number(summary.metrics, "clean_accuracy")
        certified = _number(row, "certified_accuracy")
        worst = max(_number(row, "worst_case_accuracy", clean), certified)
        yield Layer(_budget(row), certified, worst - certified, max(0.0, clean - worst), 1 - max(clean, worst))


def _subtitle(found: Found) -> str:
    if found.summary is None:
        return "no summary: the run is incomplete"
    origin = cast(Mapping[str, Json], found.summary.metadata["provenance"])
    return f"{origin['model_source']} on {found.summary.metrics['n_samples']} samples"


def _verdict(summary: Artifacts | None, failures: list[str]) -> str:
    """The outcome in words that someone who is no expert reads correctly."""
    if summary is None:
        return "There is no summary, so nothing can be said about this model."
    if failures:
        return "The evaluation contradicts itself. Until that is mended, none of its numbers says anything about the model."
    row = _sandwich(summary)[0]
    n, clean = int(_number(row, "n")), _number(summary.metrics, "clean_accuracy")
    sentences = [f"Without any attack the model is right on {clean:.1%} of {n} samples."]
    if "worst_case_accuracy" in row:
        worst = _number(row, "worst_case_accuracy")
        sentences.append(
            f"For changes of up to {_budget(row)} the answer is wrong, or a change that makes it wrong is known, "
            f"for all but {worst:.1%}; that these "
            f"{worst:.1%} were not broken by the attacks that ran does not mean that nothing can break them."
        )
    if "certified_accuracy" in row:
        certified = _number(row, "certified_accuracy")
        sentences.append(f"For {certified:.1%} it is proved that no change of that size can alter the answer.")
    else:
        sentences.append("Nothing was proved at this budget.")
    return " ".join(sentences)


def _page_one_caveats(found: Found) -> list[str]:
    """What limits every number: the caveats of the summary and of the clean evaluation."""
    caveats = [c for a in (found.summary, found.clean) if a is not None for c in a.caveats if c.code != "hard_failure"]
    return list(dict.fromkeys(c.text for c in caveats))


def _headlines(found: Found) -> list[Finding]:
    """The findings that matter most: the gap, the most damaging assessment at the budget, the worst corruption."""
    lines: list[Finding] = []
    for row in _sandwich(found.summary)[:1]:
        assert found.summary is not None
        if "certified_accuracy" in row:
            certified, clean = _number(row, "certified_accuracy"), _number(found.summary.metrics, "clean_accuracy")
            worst = _number(row, "worst_case_accuracy", clean)
            text = f"True robust accuracy at {_budget(row)} lies between {certified:.1%} and {worst:.1%}"
            open_share = (
                f"; {worst - certified:.1%} of the samples are neither proved nor broken." if worst > certified else "."
            )
            lines.append(Finding("info", text + open_share))
        lines += _most_damaging(found, row)
    for suite in (a for a in found.assessments if "worst_corruption" in a.metrics):
        accuracy = _number(suite.metrics, "worst_corruption_accuracy")
        lines.append(
            Finding(
                "info",
                f"Under {suite.metrics['worst_corruption']}, the worst corruption of {suite.name}, accuracy is {accuracy:.1%}.",
            )
        )
    return lines


def _most_damaging(found: Found, row: Mapping[str, Json]) -> list[Finding]:
    """The attack of this budget, and of no other, that turned most answers."""
    rates = [
        (_number(a.metrics, "attack_success_rate"), a)
        for a in found.assessments
        if "attack_success_rate" in a.metrics and _region(a) == (row["norm"], row["epsilon"])
    ]
    if not rates:
        return []
    rate, worst = max(rates, key=lambda pair: pair[0])
    text = (
        f"The most damaging single attack at {_budget(row)} is {worst.name} ({worst.metadata['algorithm']}): it turns "
    )
    return [Finding("info", f"{text}{rate:.1%} of the answers that were right at first.")]


def _region(artifacts: Artifacts) -> tuple[Json, Json]:
    region = cast(Mapping[str, Json], cast(Mapping[str, Json], artifacts.metadata["semantics"])["perturbation"])
    return region.get("norm"), region.get("epsilon")


def _checks(sanity: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    kwargs = cast(Mapping[str, Json], sanity.get("kwargs", {}))
    return cast(list[Mapping[str, Json]], kwargs.get("checks", []))


def _sanity_warnings(sanity: Mapping[str, Json] | None) -> list[str]:
    rows = _checks(sanity) if sanity else []
    # A hard check that failed is a hard failure of the summary already, and stands first.
    noted = [
        r for r in rows if r.get("status") == "warn" or (r.get("status") == "fail" and r.get("severity") != "HARD")
    ]
    return [f"Sanity check {r['id']}: {r['title']}. {r.get('remedy', '')}" for r in noted]


def _sanity_section(sanity: Mapping[str, Json]) -> Section:
    rows = tuple(
        (str(r["id"]), str(r["title"]), str(r["severity"]), str(r["status"]), _short(r.get("value")), _short(r.get("threshold")),
         str(r.get("reason") or (r.get("remedy") if r["status"] in {"warn", "fail"} else "") or ""))
        for r in sorted(_checks(sanity), key=lambda r: ("fail", "warn", "pass", "not_run", "not_applicable").index(str(r["status"])))
    )  # fmt: skip
    table = Table(
        "Every check, failures first",
        ("id", "check", "severity", "result", "value", "threshold", "what to do, or why not"),
        rows,
    )
    words = (
        "Passing these checks is necessary, not sufficient: a number that passes them all may still be too good, and a check that "
        "was not run says nothing."
    )
    return Section("Sanity checks: should these numbers be believed?", paragraphs=(words,), tables=(table,))


def _subject_section(reports: Path, found: Found) -> Section:
    rows: list[tuple[str, str]] = []
    for file, keys in _FACTS:
        try:
            facts = cast(dict[str, Json], read_json(reports / file))
        except UserError:
            continue
        rows += [(f"{file.split('/')[0]} {key}", _short(facts[key])) for key in keys if key in facts]
    budgets = tuple(
        (
            _budget(r),
            _percent(r, "certified_accuracy"),
            _percent(r, "worst_case_accuracy"),
            f"{r['n_attacked']}",
            f"{r['n_examined']}",
        )
        for r in _sandwich(found.summary)
    )
    header = ("budget", "certified accuracy", "worst-case accuracy", "samples attacked", "samples examined")
    words = "Certified accuracy ≤ true robust accuracy ≤ worst-case accuracy, at each budget, with 95 % intervals."
    tables = (
        Table("Model and data", ("what", "value"), tuple(rows)),
        Table("Threat model and budgets", header, budgets),
    )
    return Section("What was tested", paragraphs=(words,), tables=tables)


def _clean_section(clean: Artifacts) -> Section:
    metrics = clean.metrics
    rows = (
        ("accuracy", _percent(metrics, "clean_accuracy")),
        ("negative log-likelihood", f"{_number(metrics, 'nll'):.4f} nats"),
        ("expected calibration error", f"{_number(metrics, 'ece'):.4f}"),
        ("mean confidence", f"{_number(metrics, 'mean_confidence'):.1%}"),
    )
    return Section(
        "Clean performance",
        tables=(Table("The model without any perturbation", ("measure", "value"), rows),),
        figures=figures_of(clean),
    )


def _overview(assessments: list[Artifacts]) -> Table:
    rows = []
    for a in assessments:
        semantics = cast(Mapping[str, Json], a.metadata["semantics"])
        region = cast(Mapping[str, Json], semantics["perturbation"])
        where = f"{region['corruption_name']}" if "norm" not in region else _budget(region)
        key = next((k for k in ACCURACY if k in a.metrics), None)
        accuracy = f"{_percent(a.metrics, key)} {key.removesuffix('_accuracy')}" if key else "-"
        rows.append((a.name, f"{a.metadata['library']} {a.metadata['algorithm']}", str(semantics["threat_model"]), where, accuracy,
                     str(len(a.caveats))))  # fmt: skip
    return Table("Overview", ("assessment", "algorithm", "threat model", "region", "accuracy", "caveats"), tuple(rows))


def _assessment_section(artifacts: Artifacts) -> Section:
    plain = tuple(
        (key, _short(value)) for key, value in artifacts.metrics.items() if isinstance(value, int | float | str)
    )
    table = Table(f"Metrics of {artifacts.name}", ("metric", "value"), plain)
    caveats = tuple(Finding("warning", c.text) for c in artifacts.caveats)
    return Section(f"{artifacts.name}", findings=caveats, tables=(table,), figures=figures_of(artifacts))


def _reproducibility(found: Found) -> Section:
    rows: list[tuple[str, str]] = []
    if found.summary is not None:
        origin = cast(Mapping[str, Json], found.summary.metadata["provenance"])
        packages = {
            name: version
            for a in (found.summary, *found.assessments)
            for name, version in cast(
                Mapping[str, Json], cast(Mapping[str, Json], a.metadata["provenance"]).get("packages", {})
            ).items()
        }
        rows += [
            (key, _short(origin[key]))
            for key in ("seed", "device", "python", "dataset_digest", "model_digest")
            if key in origin
        ]
        rows += [(name, str(version)) for name, version in sorted(packages.items())]
    words = (
        "dvc repro computes all of this again from params.yaml, dvc.yaml and the locked environment. One seed gives equal bytes on one "
        "machine, but for the measured run times of verifiers, and for what a verifier decides when its time is over."
    )
    return Section(
        "Reproducibility",
        paragraphs=(words,),
        tables=(Table("Versions, seed and digests", ("what", "value"), tuple(rows)),),
    )


def _samples(summary: Artifacts | None) -> tuple[tuple[SampleRow, ...], str]:
    if summary is None:
        return (), ""
    names = [str(n) for n in cast(list[Json], _kwargs(summary)["assessments"])]
    classes = summary.class_names
    columns = (
        "targets",
        "clean_predictions",
        "verdicts",
        "worst_by",
        "certified_verdicts",
        "certified_by",
        "perturbation_distance",
    )
    values = {key: summary.tensor(key).tolist() for key in columns}
    rows = []
    for i, name in enumerate(summary.sample_names[:MAX_SAMPLE_ROWS]):
        target, clean = int(values["targets"][i]), int(values["clean_predictions"][i])
        if target != clean:
            status, by = "misclassified", "clean"
        elif values["verdicts"][i] == Verdict.ATTACK_SUCCEEDED:
            status, by = "broken", names[int(values["worst_by"][i])]
        elif values["certified_verdicts"][i] == Verdict.VERIFIED:
            status, by = "proved", names[int(values["certified_by"][i])]
        else:
            status, by = "not broken, not proved", ""
        far = f"{values['perturbation_distance'][i]:.4g}" if status == "broken" else ""
        rows.append(SampleRow(name, _class(classes, target), _class(classes, clean), status, by, far))
    total = len(summary.sample_names)
    note = (
        f"The first {len(rows)} of {total} samples; the rest is in robustness_data.pt."
        if total > len(rows)
        else f"All {total} samples."
    )
    return tuple(rows), note


def _class(names: list[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else str(index)


def _percent(row: Mapping[str, Json], key: str) -> str:
    if key not in row:
        return "-"
    low, high = row.get(f"{key}_ci_low"), row.get(f"{key}_ci_high")
    interval = (
        f" [{_number(row, f'{key}_ci_low'):.1%}, {_number(row, f'{key}_ci_high'):.1%}]"
        if low is not None and high is not None
        else ""
    )
    return f"{_number(row, key):.1%}{interval}"


def _short(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_short(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_short(v) for v in value[:10]) + (", ..." if len(value) > 10 else "")
    text = "" if value is None else str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
