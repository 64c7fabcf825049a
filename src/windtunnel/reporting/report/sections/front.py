"""Page one: the answer. What is stated in words, the sandwich, the gate, what was allowed, what did most damage, what limits it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from windtunnel.assessments.figures.plots import HALF
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.statistics import binomial_rate, median
from windtunnel.evaluation.summary.class_rows import weakest_slices
from windtunnel.evaluation.summary.sandwich_figure import budget_bars, sandwich
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import corruption_pairs, number, numbers, rate
from windtunnel.records.sandwich import Layer, options_of_summary
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Chart, Front, Highlight, Tile
from windtunnel.reporting.report.phrases import (
    bracket,
    class_name,
    kwargs,
    listed,
    mean_over,
    prediction_name,
    region,
    region_words,
)
from windtunnel.reporting.report.sections.sanity import gate_line, sanity_line, warnings_of
from windtunnel.reporting.report.sections.statement import hard_failures, layers, statement
from windtunnel.reporting.report.sections.threat import threat_blocks

FINDINGS = 5
Candidate = tuple[str, Artifacts | None]


def front(inputs: ReportInputs) -> Front:
    """Page one of the report on what was found."""
    summary = inputs.summary
    return Front(
        subtitle=_subtitle(inputs),
        facts=tuple(_facts(inputs)),
        alarms=tuple(Highlight("invalid", f"This number is not valid: {line}") for line in hard_failures(summary)),
        statement=statement(summary, len(inputs.assessments)),
        gate=gate_line(inputs.gate),
        sanity=sanity_line(inputs.checks),
        tiles=tuple(_tiles(summary)),
        sandwich=_sandwich_chart(summary),
        threat=tuple(threat_blocks(inputs)),
        findings=_findings(inputs),
        caveats=_caveats(inputs),
    )


def _subtitle(inputs: ReportInputs) -> str:
    """Describe the assessed model and data in a line."""
    if inputs.summary is None:
        return "no summary: the run is incomplete"
    source = inputs.summary.metadata.provenance.model_source or "the model"
    data = inputs.data.source if inputs.data else None
    return f"{source} on {inputs.summary.metrics['n_samples']} samples" + (f" of {data}" if data else "")


def _facts(inputs: ReportInputs) -> Iterator[tuple[str, str]]:
    """Date and commit of the results, and the digests of what they are of."""
    if inputs.run:
        yield "results of", inputs.run.date
        if inputs.run.commit:
            yield "commit", inputs.run.commit
    if inputs.summary is None:
        return
    origin = inputs.summary.metadata.provenance
    for title, digest in (("model", origin.model_digest), ("data", origin.dataset_digest)):
        if digest:
            yield title, digest[:12]
    if origin.seed is not None:
        yield "seed", str(origin.seed)


def _tiles(summary: Artifacts | None) -> Iterator[Tile]:
    """Yield the headline numbers at the global budget."""
    if summary is None:
        return
    layer = layers(summary)[0]
    where, partial = layer.budget, layer.n_attacked < layer.n and bool(layer.n_attacked)
    attacked = f"of the {layer.n_attacked} attacked of {layer.n}, not broken" if partial else "not broken"
    verified = f"of the same {layer.n_attacked}; {layer.certified_all} of all" if partial else "verified"
    for label, figure, meaning, role in (
        ("clean accuracy", rate(summary.metrics, "clean_accuracy"), "correct on clean inputs", "clean"),
        ("worst-case accuracy", layer.worst_case, f"{attacked} at {where}", "broken"),
        ("certified accuracy", layer.certified, f"{verified} at {where}", "certified"),
    ):
        if figure:
            yield Tile(label, f"{figure.value:.1%}", bracket(figure.limits).strip(), meaning, role)
        else:
            yield Tile(label, "-", "", f"not assessed at {where}", "unknown")


def _sandwich_chart(summary: Artifacts | None) -> Chart | None:
    """Return the sandwich per budget; None where there is no summary."""
    if summary is None:
        return None
    alt = f"The robustness sandwich: the state of the {summary.metrics['n_samples']} samples at each budget."
    layers_shown = budget_bars(summary)
    return Chart(sandwich(layers_shown), alt, sandwich(layers_shown, HALF))


def _findings(inputs: ReportInputs) -> tuple[Highlight, ...]:
    """Return the most damaging facts, each with what was seen, and the weakest class."""
    lines = [line for line, _ in _damage(inputs)][:FINDINGS]
    weakest = [_weakest_class(inputs.summary), _weakest_slice(inputs.summary)] if inputs.summary else []
    return tuple(Highlight("info", line) for line in [*lines, *filter(None, weakest)])


def _caveats(inputs: ReportInputs) -> tuple[Highlight, ...]:
    """List the limits of the numbers and of the findings, and what is missing."""
    general = [c.text for c in (inputs.summary.caveats if inputs.summary else ()) if c.code != "hard_failure"]
    named = [a for _, a in list(_damage(inputs))[:FINDINGS] if a]
    checks = {row.id for row in inputs.checks or ()}  # their caveats stand here under their own name
    # What one assessment says of its own draws, the summary says of all of them.
    repeated = (
        {"one_random_run"}
        if inputs.summary and any(c.code == "reproducibility" for c in inputs.summary.caveats)
        else set()
    )
    own_caveats: dict[str, list[str]] = {}
    for a in (*([inputs.clean] if inputs.clean else []), *named):
        for c in a.caveats:
            if c.text not in general and c.code not in {*checks, *repeated}:
                own_caveats.setdefault(c.text, []).append(a.name)
    lines = [*general, *(f"{listed([*dict.fromkeys(names)], 6)}: {text}" for text, names in own_caveats.items())]
    lines = list(dict.fromkeys((*lines, *warnings_of(inputs.checks)[:3], *inputs.problems)))
    return tuple(Highlight("warning", line) for line in lines)


def _damage(inputs: ReportInputs) -> Iterator[Candidate]:
    """(sentence, the assessment whose caveats limit it), the most important first."""
    yield from _adapted(inputs)
    for layer in layers(inputs.summary)[:1]:
        yield from _strongest(inputs, layer)
        yield from _nearest(inputs, layer)
        yield from _elsewhere(inputs, layer)
    yield from _counted(inputs)
    suites = [a for a in inputs.assessments if "worst_corruption" in a.metrics]
    if suites:
        worst_suite = min(suites, key=lambda a: number(a.metrics, "worst_corruption_accuracy"))
        yield _worst_corruption(worst_suite), worst_suite
    yield from _half(inputs)


def _adapted(inputs: ReportInputs) -> Iterator[Candidate]:
    """Yield the sentence of each adaptive attack on a model that hides gradients."""
    for a in inputs.assessments:
        record = kwargs(a).get("adaptive")
        if isinstance(record, dict) and record["obstacles"]:
            yield f"{a.name}: {record['sentence']}", a


def _attacks(inputs: ReportInputs) -> list[Artifacts]:
    return [
        a
        for a in inputs.assessments
        if "attack_success_rate" in a.metrics and a.kind is AssessmentKind.EMPIRICAL_ATTACK
    ]


def _turned(a: Artifacts) -> tuple[int, int]:
    """(how many samples right at first this attack broke, how many were right)."""
    right = a.tensor("clean_predictions") == a.tensor("targets")
    return int((right & (a.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)).sum()), int(right.sum())


def _strongest(inputs: ReportInputs, layer: Layer) -> Iterator[Candidate]:
    """Yield the attack of this budget, and of no other, that turned most answers."""
    mine = [a for a in _attacks(inputs) if (region(a).norm, region(a).epsilon) == (layer.norm, layer.epsilon)]
    if mine:
        worst = max(mine, key=lambda a: number(a.metrics, "attack_success_rate"))
        if not _turned(worst)[0]:
            by = ", ".join(a.name for a in mine)
            count = f"{layer.n_attacked} of {layer.n} samples attacked, by {by}"
            yield f"At {layer.budget} no adversarial example was found: {count}.", worst
            return
        sure = inputs.confidence.get(worst.name)
        confident = f", with a median confidence of {sure:.1%} in the wrong class" if sure is not None else ""
        broken, right = _turned(worst)
        yield (
            f"The strongest single attack at {layer.budget} is {worst.name} ({worst.metadata.algorithm}): it breaks "
            f"{number(worst.metrics, 'attack_success_rate'):.1%} of the correctly classified samples ({broken} of {right}){confident}.",
            worst,
        )


def _nearest(inputs: ReportInputs, layer: Layer) -> Iterator[Candidate]:
    """Yield the smallest change that is known to turn an answer."""
    summary = inputs.summary
    assert summary is not None
    distances, answers = summary.data.get("perturbation_distance"), summary.data.get("perturbed_predictions")
    right = summary.tensor("clean_predictions") == summary.tensor("targets")
    broken = right & (summary.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)
    if not isinstance(distances, Tensor) or not isinstance(answers, Tensor) or not bool(broken.any()):
        return
    i = int(distances.masked_fill(~broken, float("inf")).argmin())
    names, order = summary.class_names, _assessments_of(summary)
    label, prediction = class_name(names, int(summary.tensor("targets")[i])), prediction_name(names, int(answers[i]))
    by = order[int(summary.tensor("worst_by")[i])] if 0 <= int(summary.tensor("worst_by")[i]) < len(order) else ""
    yield (
        f"The smallest known adversarial perturbation changes {summary.sample_names[i]} from {label} to {prediction} at "
        f"{layer.norm} {float(distances[i]):.2g}{f', found by {by}' if by else ''}; the median over the "
        f"{int(broken.sum())} broken samples is {median(distances[broken].tolist()) or 0:.2g}.",
        None,
    )


def _assessments_of(summary: Artifacts) -> list[str]:
    """Return the names that the indices of the summary's tensors stand for."""
    return list(options_of_summary(summary.metadata).assessments)


def _elsewhere(inputs: ReportInputs, layer: Layer) -> Iterator[Candidate]:
    """Yield the strongest attack under another norm."""
    bounded = [a for a in _attacks(inputs) if region(a).epsilon is not None and "queries_total" not in a.metrics]
    norms = {"Linf", "L2", "L1", "L0"}
    mine = [a for a in bounded if region(a).norm != layer.norm and region(a).norm in norms]
    if mine:
        worst = max(mine, key=lambda a: number(a.metrics, "attack_success_rate"))
        broken, right = _turned(worst)
        if not broken:
            yield (
                f"Under {region_words(worst)} {worst.name} found no adversarial example ({right} samples attacked).",
                worst,
            )
            return
        yield (
            f"Under {region_words(worst)} {worst.name} ({worst.metadata.algorithm}) breaks "
            f"{number(worst.metrics, 'attack_success_rate'):.1%} of the correctly classified samples ({broken} of {right}).",
            worst,
        )


def _counted(inputs: ReportInputs) -> Iterator[Candidate]:
    """Yield the black-box attack that needs fewest queries for what it breaks."""
    mine = [a for a in _attacks(inputs) if "queries_total" in a.metrics]
    if mine and not any("queries_succ_median" in a.metrics for a in mine):
        spent = sum(number(a.metrics, "queries_total") for a in mine)
        yield f"Black-box attacks found no adversarial example in {spent:.0f} queries.", mine[0]
    elif mine:
        worst = max(mine, key=lambda a: number(a.metrics, "attack_success_rate"))
        broken, right = _turned(worst)
        bound = "" if region(worst).epsilon is not None else ", with no limit on the perturbation"
        yield (
            f"The black-box attack {worst.name} breaks {broken} of {right} samples with a median of "
            f"{number(worst.metrics, 'queries_succ_median'):.0f} queries{bound}.",
            worst,
        )


def _half(inputs: ReportInputs) -> Iterator[Candidate]:
    swept = [a for a in inputs.assessments if "median_critical_epsilon" in a.metrics]
    if swept:
        a = min(swept, key=lambda a: number(a.metrics, "median_critical_epsilon"))
        where = region(a).norm
        yield (
            f"Half of the samples are broken at {where} {number(a.metrics, 'median_critical_epsilon'):.3g} ({a.name}).",
            a,
        )


def _worst_corruption(suite: Artifacts) -> str:
    """Return the worst corruption of a suite, as a mean over its severities, and the single worst corruption and severity."""
    m, pairs = suite.metrics, corruption_pairs(suite.metadata.kwargs)
    clean, low = number(m, "clean_accuracy"), number(m, "worst_corruption_accuracy")
    over = f" ({mean_over(suite)})" if mean_over(suite) else ""
    sentence = (
        f"The most harmful corruption of {suite.name} is {m['worst_corruption']}: accuracy falls from {clean:.1%} to {low:.1%}{over}, "
        f"on {len(suite.sample_names)} samples"
    )
    if len(pairs) > 1 and "accuracy_by_pair" in m:
        value, (name, severity) = min(zip(numbers(m, "accuracy_by_pair"), pairs, strict=True))
        sentence += f"; lowest is {name} at severity {severity} with {value:.1%}"
    return f"{sentence}."


def _weakest_slice(summary: Artifacts) -> str | None:
    """Name the slice with the lowest worst-case accuracy, or clean accuracy where nothing attacked; None without slices."""
    rows = weakest_slices(summary.metrics)
    if not rows:
        return None
    row, where = rows[0], layers(summary)[0].budget
    simultaneous = f"{'an interval' if len(rows) == 1 else 'intervals'} for {len(rows)} slices at once"
    if row.worst_case is None:
        return f"The worst slice on clean inputs is {row.name}: {row.clean} of its {row.n} samples are right ({simultaneous})."
    return (
        f"The worst slice at {where} is {row.name}: {row.worst_case} of its {row.n_attacked} attacked samples were not broken "
        f"({simultaneous})."
    )


def _weakest_class(summary: Artifacts) -> str | None:
    """Name the class with the lowest worst-case accuracy at the global budget; None where nothing attacked."""
    layer, drawn = layers(summary)[0], summary.data.get("drawn")
    if layer.worst_case is None:
        return None
    targets, is_robust = summary.tensor("targets"), summary.tensor("verdicts") != Verdict.ATTACK_SUCCEEDED
    if isinstance(drawn, Tensor):
        targets, is_robust = targets[drawn], is_robust[drawn]
    counts = [
        (int(is_robust[targets == k].sum()), int((targets == k).sum()), int(k)) for k in targets.unique().tolist()
    ]
    if len(counts) < 2:
        return None
    right, n, label = min(counts, key=lambda c: c[0] / c[1])
    held_rate = binomial_rate(right, n)
    return (
        f"The weakest class at {layer.budget} is {class_name(summary.class_names, label)}: {right} of its {n} attacked samples "
        f"were not broken, "
        f"{held_rate.value:.1%}{bracket((held_rate.low, held_rate.high))}."
    )
