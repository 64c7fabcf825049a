"""Figures of corruption suites and of single corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.assessments.attacks.figures import NOT_IMAGES, answer
from windtunnel.assessments.figures.base import Drawing, NothingToDraw, Visualiser, register
from windtunnel.assessments.figures.plots import HALF, Bar, Series, Stack, bars, lines, matrix, plain, stacks
from windtunnel.assessments.figures.scene import ramp
from windtunnel.core.contracts import AssessmentKind
from windtunnel.records.metadata import corruption_pairs, limits, number, numbers, part_name
from windtunnel.records.tables import table

if TYPE_CHECKING:
    from windtunnel.records.artifacts import Artifacts

_NEVER = 6  # what `minimal_severity` holds where none breaks the sample
_NO_SUITE = "A single corruption: there is no suite to compare."


@dataclass(frozen=True)
class _CorruptionVisualiser(
    Visualiser, kinds=frozenset({AssessmentKind.STATISTICAL_SAMPLING}), families=frozenset({"corruptions"})
):
    """A figure of corruptions."""


def _pairs(artifacts: Artifacts) -> tuple[tuple[str, int], ...]:
    """(corruption, severity) of a suite in the order of its rows. Raises NothingToDraw for a single corruption."""
    if not (pairs := corruption_pairs(artifacts.metadata.kwargs)):
        raise NothingToDraw(_NO_SUITE)
    return pairs


@register
@dataclass(frozen=True)
class CorruptionAccuracyVisualiser(_CorruptionVisualiser, title="Clean against corrupted accuracy"):
    """Corrupted accuracy against clean accuracy, per corruption of a suite, with their intervals."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a bar per corruption, the lowest first."""
        m, n = artifacts.metrics, len(artifacts.sample_names)
        by, lows, highs = (
            table(dict[str, float], m, f"accuracy_by_corruption{end}") for end in ("", "_ci_low", "_ci_high")
        )
        if by:
            rows = [
                Bar(name, value, "corrupted", (lows[name], highs[name]))
                for name, value in sorted(by.items(), key=lambda item: item[1])
            ]
            label = f"accuracy on {n} samples, mean of the severities"
        else:
            rows = [Bar(artifacts.name, number(m, "corrupted_accuracy"), "corrupted", limits(m, "corrupted_accuracy"))]
            label = f"accuracy on {n} samples"
        clean = number(m, "clean_accuracy")
        alt = f"Accuracy per corruption against {clean:.1%} clean; the lowest is {rows[0].label} with {rows[0].value:.1%}."
        return [bars(rows, label, alt, (clean, f"clean {clean:.1%}"), width=HALF)]


@register
@dataclass(frozen=True)
class SeverityCurveVisualiser(_CorruptionVisualiser, essential=True, title="Accuracy against severity"):
    """Accuracy against severity: the mean of the suite, and each corruption behind it."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One chart; at severity 0 stands what rounding to 8 bits alone does."""
        m, pairs = artifacts.metrics, _pairs(artifacts)
        accuracy, zero = numbers(m, "accuracy_by_pair"), number(m, "severity_0_accuracy")
        drawn = []
        for name in dict.fromkeys(c for c, _ in pairs):
            points = tuple((s, v) for (c, s), v in zip(pairs, accuracy, strict=True) if c == name)
            drawn.append(Series(name, "soft", ((0, zero), *points), thin=True, named=False))
        severities = numbers(m, "severities")
        mean, low, high = (
            [number(m, f"severity_0_accuracy{end}"), *numbers(m, f"accuracy_by_severity{end}")]
            for end in ("", "_ci_low", "_ci_high")
        )
        curve, band = tuple(zip([0.0, *severities], mean, strict=True)), tuple(zip(low, high, strict=True))
        drawn.append(Series("mean, 95 % band; thin lines are single corruptions", "corrupted", curve, band))
        alt = f"Mean accuracy against severity: {zero:.1%} at 0, {mean[-1]:.1%} at {plain(severities[-1])}."
        ticks = [0.0, *severities]
        return [lines(drawn, "severity (0: 8-bit rounding alone)", "accuracy", alt, (0, severities[-1]), (0, 1), ticks)]


@register
@dataclass(frozen=True)
class CorruptionHeatmapVisualiser(_CorruptionVisualiser, essential=True, title="Accuracy per corruption and severity"):
    """Corruption x severity, accuracy in the cells."""

    cmap: str = "cividis"

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """One matrix."""
        from windtunnel.core.statistics import binomial_interval

        pairs, n = _pairs(artifacts), len(artifacts.sample_names)
        accuracy = dict(zip(pairs, numbers(artifacts.metrics, "accuracy_by_pair"), strict=True))
        names, severities = list(dict.fromkeys(c for c, _ in pairs)), sorted({s for _, s in pairs})

        def tip(name: str, severity: int) -> str:
            rate = accuracy[name, severity]
            low, high = binomial_interval(round(rate * n), n)
            return f"{name}, severity {severity}: {rate:.1%} [{low:.1%}, {high:.1%}]"

        grid = [[accuracy[c, s] for s in severities] for c in names]
        tips = [[tip(c, s) for s in severities] for c in names]
        alt = "Accuracy per corruption and severity."
        texts, colours = [str(s) for s in severities], ramp(self.cmap)
        return [matrix(grid, names, texts, "severity", "corruption", alt, colours, lambda v: f"{v:.1%}", tips)]


@register
@dataclass(frozen=True)
class CorruptionSheetVisualiser(_CorruptionVisualiser, essential=True, title="One sample under every corruption"):
    """One sample under every corruption of the suite at its highest severity."""

    sample: int = 0
    columns: int = 8

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a grid from the directories of the single corruptions; missing ones are left out."""
        from windtunnel.assessments.figures.pictures import PictureGrid, picture
        from windtunnel.records.artifacts import load_tensors
        from windtunnel.records.files import DATA_FILE
        from windtunnel.records.result import tensor_in

        pairs, images, i = _pairs(artifacts), artifacts.tensor("clean_inputs"), self.sample
        if images.ndim != 4:
            raise NothingToDraw(NOT_IMAGES)
        shown = (artifacts.kept == i).nonzero().flatten()
        if not len(shown):
            raise NothingToDraw(f"The images of sample {i} were not kept (storage.inputs).")
        row = int(shown[0])  # of the images; the corruptions kept those of the same samples
        worst, name = max(s for _, s in pairs), artifacts.shown_names[i]
        target, names = answer(artifacts, "targets", i), artifacts.class_names
        tiles = [picture(images[row], f"{name}, clean", f"clean: {target}")]
        for corruption in [c for c, s in pairs if s == worst]:
            file = artifacts.directory / part_name(corruption, worst) / DATA_FILE
            if file.is_file():
                data = load_tensors(file, whole=False)
                inputs, answers = (tensor_in(data, f"perturbed_{key}") for key in ("inputs", "predictions"))
                prediction = names[int(answers[i])]
                change = prediction if prediction == target else f"{target} → {prediction}"
                tiles.append(
                    picture(inputs[row], f"under {corruption}: {change}", f"{corruption.replace('_', ' ')}: {change}")
                )
        rows = tuple(("", tuple(tiles[start : start + self.columns])) for start in range(0, len(tiles), self.columns))
        return [PictureGrid(f"{artifacts.name}: {name} under every corruption at severity {worst}", (), rows)]


@register
@dataclass(frozen=True)
class PredictionFlipsVisualiser(_CorruptionVisualiser, title="Prediction flips"):
    """Changes of predictions against clean: right to wrong, wrong to right, and from one wrong class to another."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a bar per corruption, as shares of the samples, the mean over its severities; the most first."""
        targets, clean = artifacts.tensor("targets"), artifacts.tensor("clean_predictions")
        suite = corruption_pairs(artifacts.metadata.kwargs)
        pairs = suite or [(artifacts.name, 0)]
        key = "corruption_predictions" if suite else "perturbed_predictions"
        predictions = artifacts.tensor(key).reshape(len(pairs), -1)
        right, was_right, moved = predictions == targets, clean == targets, predictions != clean
        kinds = (moved & was_right, moved & ~was_right & ~right, moved & right)
        rows = []
        for name in dict.fromkeys(c for c, _ in pairs):
            mine = [i for i, (c, _) in enumerate(pairs) if c == name]
            rows.append(Stack(name, tuple(float(kind[mine].double().mean()) for kind in kinds)))
        rows.sort(key=lambda row: -sum(row.shares))
        parts = (("broken", "right to wrong"), ("unknown", "wrong to another wrong"), ("certified", "wrong to right"))
        most = sum(rows[0].shares)
        alt = f"Share of answers that a corruption changes; most: {rows[0].label}, {most:.1%}."
        label = f"share of the samples{', mean of the severities' if suite else ''}"
        return [stacks(rows, parts, label, alt, max(0.05, most))]


@register
@dataclass(frozen=True)
class MinimalSeverityVisualiser(_CorruptionVisualiser, title="Minimal severity"):
    """Histogram of the mildest severity at which any corruption of the suite breaks a sample."""

    def draw(self, artifacts: Artifacts) -> Sequence[Drawing]:
        """Return a bar per severity, and one for samples that no severity breaks."""
        if "minimal_severity" not in artifacts.data:
            raise NothingToDraw(_NO_SUITE)
        minimal = artifacts.tensor("minimal_severity")
        wrong = artifacts.tensor("clean_predictions") != artifacts.tensor("targets")
        severities = [int(s) for s in numbers(artifacts.metrics, "severities")]
        counts = {s: int(((minimal == s) & ~wrong).sum()) for s in (*severities, _NEVER)}
        rows = [Bar(f"severity {s}", counts[s], "corrupted") for s in severities]
        rows.append(Bar("none of them", counts[_NEVER], "certified"))
        alt = "Samples by the mildest severity that breaks them: " + ", ".join(
            f"{r.label} {int(r.value)}" for r in rows
        )
        axis_label = f"samples broken first at; {int(wrong.sum())} more are misclassified anyway"
        top = max(1, *(row.value for row in rows))
        return [bars(rows, axis_label, alt, top=top, value_format=plain, axis_format=plain, width=HALF)]
