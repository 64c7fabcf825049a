"""One assessment: the charts that a section shows of it, what limits it, and its details for who searches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from windtunnel.assessments.latent.tables import ClassifierMetrics, Correlation
from windtunnel.core.contracts import ThreatModel
from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.basis import Basis
from windtunnel.records.files import is_tensor_summary
from windtunnel.records.metadata import Rate, limits, rate
from windtunnel.records.tables import table
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Highlight, Section, Table, Text
from windtunnel.reporting.report.phrases import class_name, interval, kwargs, listed, region_words, short, with_interval
from windtunnel.reporting.report.sections.side_by_side import attack_by_attack, shown_side_by_side

_SHARES = {"clean": "clean_accuracy", "LRA": "lra", "LGA": "lga", "LLNA": "llna_reconstruction", "LARA": "lara"}
_SHARES |= {"LAGA": "laga", "noise": "noise_accuracy", "frequency L2": "adversarial_frequency_scaled_l2"}
_SHARES |= {"frequency Linf": "adversarial_frequency_linf"}
_SIZES = {"LARS": "lars", "LAGS": "lags", "severity L2": "adversarial_severity_scaled_l2"}
_SIZES |= {"severity Linf": "adversarial_severity_linf", "image L2, real": "image_change_l2_reconstruction"}
_SIZES |= {"image L1, real": "image_change_l1_reconstruction", "image L2, generated": "image_change_l2_generation"}
_SIZES |= {"image L1, generated": "image_change_l1_generation"}
_MOST_NAMES = 12  # of assessments in a cell
_FEW_CHARACTERS = 24


def essential_blocks(artifacts: Artifacts, inputs: ReportInputs) -> Iterator[Block]:
    """Yield the blocks of an assessment's section."""
    for drawn in inputs.figures.get(artifacts.name, ()):
        if drawn.essential:
            yield from drawn.blocks
    yield from classifier_tables(artifacts)
    if _asked_for_bounds(artifacts):
        yield from _bounds(artifacts)


def assessment_section(artifacts: Artifacts, inputs: ReportInputs, options: Options) -> Section:
    """Return the details of one assessment: what ran, its further figures, every metric and option."""
    blocks = [Text(what_ran(artifacts)), *caveat_blocks(artifacts), *_further_figures(artifacts, inputs, options)]
    blocks += [*attack_by_attack(artifacts, inputs, options), *obstacle_tables(artifacts)]
    blocks += [
        *(() if _asked_for_bounds(artifacts) else _bounds(artifacts)),
        *_pairs(inputs, artifacts.name),
        *_metrics(artifacts),
    ]
    return Section(artifacts.name, tuple(blocks), detail=True)


def classifier_tables(artifacts: Artifacts) -> Iterator[Table]:
    """Yield the accuracies and the distances of every classifier, and the correlations; nothing where there is one classifier."""
    rows = table(tuple[ClassifierMetrics, ...], artifacts.metrics, "models")
    if not rows:
        return
    for what, columns, form in (
        ("accuracies and frequencies", _SHARES, ".1%"),
        ("distances of their nearest adversarial examples", _SIZES, ".3g"),
    ):
        used = {title: key for title, key in columns.items() if any(key in row.numbers for row in rows)}
        cells = tuple((short(row.model), *(_measured(row.numbers, key, form) for key in used.values())) for row in rows)
        yield Table(f"Classifiers of {artifacts.name}: {what}", ("classifier", *used), cells)
    if lines := table(tuple[Correlation, ...], artifacts.metrics, "correlations"):
        cells = tuple(
            (line.x.replace("_", " "), line.y.replace("_", " "), str(line.n), *map(_coefficient, coefficients))
            for line in lines
            for coefficients in [(line.of_pearson, line.of_spearman)]
        )
        header = ("metric", "with", "classifiers", "Pearson, 95 % interval", "Spearman, 95 % interval")
        yield Table(f"Correlations over the classifiers of {artifacts.name}", header, cells, folded=True)


def _measured(numbers: Mapping[str, float], key: str, form: str) -> str:
    return with_interval(numbers[key], limits(numbers, key), form) if key in numbers else "-"


def _coefficient(coefficient: Rate | None) -> str:
    return with_interval(coefficient.value, coefficient.limits, ".2f") if coefficient else "constant"


def obstacle_tables(artifacts: Artifacts) -> Iterator[Block]:
    """Yield what an adaptive attack found that hides gradients: its result in a sentence, and each obstacle with its evidence."""
    record = kwargs(artifacts).get("adaptive")
    if not isinstance(record, dict):
        return
    yield Text(f"{artifacts.name}: {record['sentence']}")
    rows = tuple(
        (str(o["kind"]), str(o["layer"]), str(o["operation"]), str(o["evidence"])) for o in record["obstacles"]
    )
    if rows:
        yield Table(f"What hides gradients from {artifacts.name}", ("obstacle", "layer", "operation", "evidence"), rows)
    if lines := record.get("lines"):
        options = ", ".join(f"{key}: {value}" for key, value in lines.items())
        yield Text(f"To attack through it with an attack of your own, add to its entry in params.yaml: {options}")


def _further_figures(artifacts: Artifacts, inputs: ReportInputs, options: Options) -> Iterator[Block]:
    left_out = shown_side_by_side(artifacts, inputs, options)
    for drawn in inputs.figures.get(artifacts.name, ()):
        if not drawn.essential and not (left_out and drawn.repeats):
            yield from drawn.blocks


def caveat_blocks(artifacts: Artifacts) -> list[Block]:
    """Return the caveats of an assessment, with how many samples they concern."""
    return [Highlight("warning", text) for text in _caveats(artifacts)]


def limits_table(mine: Sequence[Artifacts]) -> list[Table]:
    """Tabulate the caveats of these assessments: each caveat once, with those that it concerns."""
    concerned: dict[str, dict[str, list[str]]] = {}
    for a in mine:
        for caveat, text in zip(a.caveats, _caveats(a), strict=True):
            concerned.setdefault(caveat.code, {}).setdefault(text, []).append(a.name)
    rows = tuple(row for texts in concerned.values() for row in _once(texts))
    return [Table("What limits these numbers", ("of", "caveat"), rows)] if rows else []


def _once(texts: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield the rows of one kind of caveat: one row where its texts differ in a few words alone, such as a number."""
    split_texts = [text.split(" ") for text in texts]
    shortest = min(map(len, split_texts))
    same = [len({w[i] for w in split_texts}) == 1 for i in range(shortest)]
    ends = [len({w[-1 - i] for w in split_texts}) == 1 for i in range(shortest)]
    start = same.index(False) if False in same else shortest
    stop = min(ends.index(False) if False in ends else shortest, shortest - start)
    middles = [" ".join(w[start : len(w) - stop]) for w in split_texts]
    if len(texts) == 1 or not start or max(map(len, middles)) > _FEW_CHARACTERS:
        yield from ((listed(names, _MOST_NAMES), text) for text, names in texts.items())
        return
    differing = [
        f"{middle} ({listed(names, _MOST_NAMES)})" for middle, names in zip(middles, texts.values(), strict=True)
    ]
    all_names = listed([name for names in texts.values() for name in names], _MOST_NAMES)
    yield (
        all_names,
        " ".join(
            [*split_texts[0][:start], listed(differing, _MOST_NAMES), *split_texts[0][len(split_texts[0]) - stop :]]
        ),
    )


def _caveats(artifacts: Artifacts) -> Iterable[str]:
    return (c.text + (f" ({len(c.samples)} samples)" if c.samples else "") for c in artifacts.caveats)


def what_ran(artifacts: Artifacts) -> str:
    """Library, algorithm, threat model, region, samples and arguments, in a line."""
    ran = artifacts.metadata
    meaning, call = ran.semantics, ran.call_kwargs
    parts = [f"{ran.library} {ran.library_version} {ran.algorithm}".replace("  ", " ")]
    if meaning.threat_model is not ThreatModel.NOT_APPLICABLE:
        parts += [meaning.threat_model.value.replace("_", " "), meaning.objective.value]
    parts += [region_words(artifacts), f"{len(artifacts.sample_names)} samples"]
    options = ", ".join(f"{key}={short(value)}" for key, value in call.items() if not is_tensor_summary(value))
    return "; ".join(w for w in parts if w) + (f". Called with {options}." if options else ".")


def _asked_for_bounds(artifacts: Artifacts) -> bool:
    """Return True where the entry has `output_bounds: true`: what it asked for is on paper in every layout."""
    return kwargs(artifacts).get("output_bounds") is True


def _bounds(artifacts: Artifacts) -> Iterator[Table]:
    """Tabulate the verified bounds of the logits, class by class: the mean over the samples that it bounded."""
    ends = [table(tuple[float, ...], artifacts.metrics, f"mean_{end}_bound") for end in ("lower", "upper")]
    if all(ends):
        names = artifacts.class_names
        rows = [
            (class_name(names, i), short(low), short(high)) for i, (low, high) in enumerate(zip(*ends, strict=True))
        ]
        of = f"{short(artifacts.metrics.get('n_bounded'))} of {len(artifacts.sample_names)} samples have bounds"
        caption = f"{artifacts.name}: mean verified bounds of the logits; {of}"
        yield Table(caption, ("class", "lower", "upper"), tuple(rows), folded=True)


def _metrics(artifacts: Artifacts) -> Iterator[Table]:
    rows = []
    for key, value in artifacts.metrics.items():
        if not key.endswith(("_ci_low", "_ci_high")) and not isinstance(value, dict | list):
            rows.append((key, short(value), interval(limits(artifacts.metrics, key), ".4g")))
    caption = f"Every metric of {artifacts.name} ({Basis.of(artifacts.metadata)})"
    yield Table(caption, ("metric", "value", "95 % interval"), tuple(rows))
    left_out = {"sample_names", "class_names", "adaptive"}
    if options := [(k, short(v)) for k, v in kwargs(artifacts).items() if k not in left_out]:
        yield Table(f"Options of {artifacts.name}", ("option", "value"), tuple(options))


def _pairs(inputs: ReportInputs, name: str) -> Iterator[Table]:
    """Yield the single corruptions of a suite, each with its interval."""
    children = inputs.children.get(name, {})
    rows = []
    for child, metadata in children.items():
        accuracy = rate(metadata.metrics, "corrupted_accuracy")
        measured = (f"{accuracy.value:.1%}", interval(accuracy.limits, ".1%")) if accuracy else ("-", "")
        rows.append((child, *measured, short(metadata.metrics.get("prediction_flips")), str(len(metadata.caveats))))
    if rows:
        header = ("corruption", "accuracy", "95 % interval", "predictions that changed", "caveats")
        n = len(next(iter(children.values())).kwargs.sample_names)
        yield Table(f"Single corruptions of {name}, on {n} samples each", header, tuple(rows))
