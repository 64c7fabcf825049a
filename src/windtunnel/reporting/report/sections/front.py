"""Page one: the answer. What is stated in words, the sandwich, the gate, what was allowed, what did most damage, what limits it."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from windtunnel.assessments.figures.pictures import Picture, PictureGrid, picture
from windtunnel.assessments.figures.plots import HALF
from windtunnel.boundary.data.record import origin_of
from windtunnel.core.contracts import AssessmentKind, Norm, Objective, Verdict
from windtunnel.core.distances import distance
from windtunnel.core.sample_states import SampleState, states_of
from windtunnel.core.statistics import median
from windtunnel.core.transformations import epsilon_text, transformation_of
from windtunnel.evaluation.summary.class_rows import weakest_first, weakest_slices
from windtunnel.evaluation.summary.sandwich_figure import budget_bars, sandwich
from windtunnel.evaluation.witness.parameters import at_units, random_units
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import corruption_pairs, number, numbers, rate
from windtunnel.records.sandwich import Layer, options_of_summary
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Chart, Front, Highlight, Text, Tile
from windtunnel.reporting.report.phrases import (
    class_name,
    interval,
    kwargs,
    listed,
    mean_over,
    prediction_name,
    region,
    region_words,
)
from windtunnel.reporting.report.sections.sanity import gate_line, sanity_line, warnings_of
from windtunnel.reporting.report.sections.statement import hard_failures, layers, statement

FINDINGS = 5
SAMPLES = 3
_SEES = {
    "white_box": "the model's weights and gradients",
    "black_box_score": "only the scores of the model",
    "black_box_decision": "only the predicted class",
}
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
    return f"{source} on {inputs.summary.metrics['n_samples']} samples" + (f" {origin_of(data)}" if data else "")


def _facts(inputs: ReportInputs) -> Iterator[tuple[str, str]]:
    """Date and commit of the results, and the digests of what they are of."""
    if inputs.run:
        yield "results of", inputs.run.date
        if inputs.run.commit:
            yield "commit", inputs.run.commit
        if inputs.run.workers > 1:
            yield "workers", f"{inputs.run.workers} at most"
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
            yield Tile(label, f"{figure.value:.1%}", interval(figure.limits, ".1%"), meaning, role)
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
    codes = {c.code for c in inputs.summary.caveats} if inputs.summary else set()
    repeated = {"one_random_run"} if "reproducibility" in codes else set()
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
        yield from _smallest(inputs, layer)
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
    """Return the attacks, what broke the largest share first."""
    kind = AssessmentKind.EMPIRICAL_ATTACK
    attacks = [a for a in inputs.assessments if "attack_success_rate" in a.metrics and a.kind is kind]
    return sorted(attacks, key=lambda a: -number(a.metrics, "attack_success_rate"))


def _turned(a: Artifacts) -> tuple[int, int]:
    """(how many samples right at first this attack broke, how many were right)."""
    right = a.tensor("clean_predictions") == a.tensor("targets")
    return int((right & (a.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)).sum()), int(right.sum())


def _success(a: Artifacts) -> str:
    """Return `breaks 50.0% of the correctly classified samples (7 of 14)`."""
    broken, right = _turned(a)
    share = number(a.metrics, "attack_success_rate")
    return f"breaks {share:.1%} of the correctly classified samples ({broken} of {right})"


def _is_at(a: Artifacts, layer: Layer) -> bool:
    return not region(a).around and (region(a).norm, region(a).epsilon) == (layer.norm, layer.epsilon)


def _strongest(inputs: ReportInputs, layer: Layer) -> Iterator[Candidate]:
    """Yield the attack of this budget, and of no other, that turned most answers."""
    mine = [a for a in _attacks(inputs) if _is_at(a, layer)]
    if not mine:
        return
    worst = mine[0]
    if _turned(worst)[0]:
        sure = inputs.confidence.get(worst.name)
        confident = f", with a median confidence of {sure:.1%} in the wrong class" if sure is not None else ""
        which = f"The strongest single attack at {layer.budget} is {worst.name} ({worst.metadata.algorithm})"
        yield f"{which}: it {_success(worst)}{confident}.", worst
    else:
        by = ", ".join(a.name for a in mine)
        count = f"{layer.n_attacked} of {layer.n} samples attacked, by {by}"
        yield f"At {layer.budget} no adversarial example was found: {count}.", worst


def _smallest(inputs: ReportInputs, layer: Layer) -> Iterator[Candidate]:
    """Yield the smallest change that is known to turn an answer."""
    summary = inputs.summary
    assert summary is not None
    distances, answers = summary.data.get("perturbation_distance"), summary.data.get("perturbed_predictions")
    right = summary.tensor("clean_predictions") == summary.tensor("targets")
    broken = right & (summary.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)
    if not isinstance(distances, Tensor) or not isinstance(answers, Tensor) or not bool(broken.any()):
        return
    i = int(distances.masked_fill(~broken, float("inf")).argmin())
    names, order = summary.class_names, options_of_summary(summary.metadata).assessments
    label, prediction = class_name(names, int(summary.tensor("targets")[i])), prediction_name(names, int(answers[i]))
    by = order[int(summary.tensor("worst_by")[i])] if 0 <= int(summary.tensor("worst_by")[i]) < len(order) else ""
    yield (
        f"The smallest known adversarial perturbation changes {summary.sample_names[i]} from {label} to {prediction} at "
        f"{layer.norm} {float(distances[i]):.2g}{f', found by {by}' if by else ''}; the median over the "
        f"{int(broken.sum())} broken samples is {median(distances[broken].tolist()) or 0:.2g}.",
        None,
    )


def _elsewhere(inputs: ReportInputs, layer: Layer) -> Iterator[Candidate]:
    """Yield the strongest attack under another norm."""
    norms = {"Linf", "L2", "L1", "L0"} - {layer.norm}
    bounded = [a for a in _attacks(inputs) if region(a).epsilon is not None and "queries_total" not in a.metrics]
    for worst in [a for a in bounded if region(a).norm in norms][:1]:
        broken, right = _turned(worst)
        if broken:
            what = f"{worst.name} ({worst.metadata.algorithm}) {_success(worst)}"
        else:
            what = f"{worst.name} found no adversarial example ({right} samples attacked)"
        yield f"Under {region_words(worst)} {what}.", worst


def _counted(inputs: ReportInputs) -> Iterator[Candidate]:
    """Yield the black-box attack that needs fewest queries for what it breaks."""
    mine = [a for a in _attacks(inputs) if "queries_total" in a.metrics]
    if not mine:
        return
    worst = mine[0]
    if any("queries_succ_median" in a.metrics for a in mine):
        broken, right = _turned(worst)
        bound = "" if region(worst).epsilon is not None else ", with no limit on the perturbation"
        spent = f"a median of {number(worst.metrics, 'queries_succ_median'):.0f} queries{bound}"
        yield f"The black-box attack {worst.name} breaks {broken} of {right} samples with {spent}.", worst
    else:
        spent_queries = sum(number(a.metrics, "queries_total") for a in mine)
        yield f"Black-box attacks found no adversarial example in {spent_queries:.0f} queries.", worst


def _half(inputs: ReportInputs) -> Iterator[Candidate]:
    key = "median_critical_epsilon"
    swept = [a for a in inputs.assessments if key in a.metrics]
    for a in sorted(swept, key=lambda a: number(a.metrics, key))[:1]:
        yield f"Half of the samples are broken at {region(a).norm} {number(a.metrics, key):.3g} ({a.name}).", a


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
    ends, classes = weakest_first(summary.metrics)
    if "worst_case" not in ends or len(classes) < 2:
        return None
    row, budget = classes[0], layers(summary)[0].budget
    robust = f"{round(row.rates[0].value * row.n)} of its {row.n} attacked samples were not broken"
    return f"The weakest class at {budget} is {row.name}: {robust}, {row.rates[0]}."


def threat_blocks(inputs: ReportInputs) -> Iterator[Block]:
    """Yield a paragraph, and three samples: clean, with a random change of the full size, and the nearest known example."""
    budgets = layers(inputs.summary)
    if not budgets:
        return
    first = budgets[0]
    description = allowed(first.norm, first.epsilon, _values(inputs))
    yield Text(f"The adversary {description}. {_adversaries(inputs.assessments, first)}".strip())
    if grid := _size(inputs, first):
        yield grid


def _values(inputs: ReportInputs) -> int:
    """Return the number of values of a sample; 0 where nothing says so."""
    pictures = inputs.pictures
    return int(next(iter(pictures.clean.values())).numel()) if pictures and pictures.clean else 0


def allowed(norm: Norm, epsilon: float, values: int = 0) -> str:
    """Describe what a budget allows, on values from 0 to 1."""
    size = epsilon_text(epsilon)
    if transformation := transformation_of(norm):
        manner = "by the worst of all within" if not transformation.is_square else "by, at the worst place, a"
        return f"may transform the image {manner} {transformation.words(epsilon)}"
    if norm == Norm.LINF:
        levels = f", about {epsilon * 255:.0f} of 255 grey levels" if "/255" not in size else ""
        return f"may change every pixel by up to {size} on the scale from 0 (black) to 1 (white){levels}"
    if norm == Norm.L2:
        each = (
            f", like all {values} values by {epsilon / values**0.5:.2g}, or one by {min(1.0, epsilon):.2g}"
            if values
            else ""
        )
        return f"may change the pixels by {size} in all (root of the sum of squares{each})"
    if norm == Norm.L1:
        return f"may change the pixels by {size} in all (sum of the absolute changes)"
    return f"may change {size} values arbitrarily" if norm == Norm.L0 else f"may change a sample by {size} under {norm}"


def _adversaries(assessments: Sequence[Artifacts], layer: Layer) -> str:
    attacks = [a for a in assessments if a.kind is AssessmentKind.EMPIRICAL_ATTACK]
    mine = [a for a in attacks if _is_at(a, layer)]
    if not mine:
        return ""
    counts = Counter(a.metadata.semantics.threat_model.value for a in mine)
    names = {
        kind: [a.name for a in mine if a.metadata.semantics.threat_model == kind] for kind in counts if kind in _SEES
    }
    parts = [f"{_who(who)} {'see' if len(who) > 1 else 'sees'} {_SEES[kind]}" for kind, who in names.items()]
    targeted = any(a.metadata.semantics.objective is Objective.TARGETED for a in mine)
    aim = "Some attacks aim at a chosen target class." if targeted else "Any wrong class is a success."
    return f"At this budget: {'; '.join(parts)}. {aim}" if parts else aim


def _who(names: list[str]) -> str:
    return " and ".join(names) if len(names) <= 6 else f"{len(names)} attacks, as {listed(names, 3)},"


def _size(inputs: ReportInputs, layer: Layer) -> PictureGrid | None:
    pictures, base = inputs.pictures, inputs.summary
    if pictures is None or base is None or not pictures.chosen:
        return None
    targets, names = base.tensor("targets"), base.class_names
    header: list[str] = []
    cells: list[Picture | None] = []
    for i in pictures.chosen[:SAMPLES]:
        clean, label = pictures.clean[i], class_name(names, int(targets[i]))
        header += ["clean", "random", "nearest"]
        shifted = random_change(clean, layer.norm, layer.epsilon)
        cells.append(picture(clean, f"{pictures.names[i]}, clean", label))
        cells.append(
            picture(shifted, f"{pictures.names[i]} with a random perturbation of size {layer.budget}", layer.budget)
        )
        cells.append(_nearest(inputs, base, i, label))
    caption = (
        f"What {layer.budget} looks like on three of the samples: clean, with a random perturbation of full size, and the nearest known "
        "adversarial example with its predicted class and distance"
        f"{'' if any(cells[2::3]) else '; none was found of these'}."
    )
    return PictureGrid(caption, tuple(header), (("", tuple(cells)),), small=True)


def _nearest(inputs: ReportInputs, base: Artifacts, i: int, label: str) -> Picture | None:
    pictures = inputs.pictures
    image = pictures.nearest.get(i) if pictures else None
    predictions, distances = base.data.get("perturbed_predictions"), base.data.get("perturbation_distance")
    if pictures is None or image is None or not isinstance(predictions, Tensor) or not isinstance(distances, Tensor):
        return None
    states = states_of(base.data, base.tensor("clean_predictions"), base.tensor("targets"))
    if states[i] != SampleState.BROKEN.code:
        return None  # what stands there is the clean image
    text = f"{label} → {prediction_name(base.class_names, int(predictions[i]))}, {float(distances[i]):.2g}"
    return picture(image, f"nearest known example of {pictures.names[i]}: {text}", text)


def random_change(image: Tensor, norm: str, epsilon: float) -> Tensor:
    """Return a (C, H, W) image in [0, 1] with a random change of size `epsilon` (before clipping), the same on every call."""
    generator = torch.Generator().manual_seed(0)
    if transformation := transformation_of(norm):
        units = random_units(1, len(transformation.names), generator, corner=True)
        content = torch.rand(image[None].shape, generator=generator) if transformation.is_patch else None
        return at_units(transformation, epsilon, image[None], units, content)[0]
    noise = torch.randn(image.shape, generator=generator)
    if norm == Norm.LINF:
        return (image + epsilon * noise.sign()).clamp(0, 1)
    if norm == Norm.L0:
        chosen = torch.randperm(image.numel(), generator=generator)[: int(epsilon)]
        changed = image.flatten().clone()
        changed[chosen] = 1 - changed[chosen]
        return changed.view_as(image)
    size = float(distance(Norm(norm), noise[None], torch.zeros_like(noise)[None])) if norm in set(Norm) else 1.0
    return (image + epsilon * noise / size).clamp(0, 1)
