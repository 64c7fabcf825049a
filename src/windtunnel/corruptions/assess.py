"""The pipeline of a corruption suite: every (corruption, severity) is an assessment, and so is the suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windtunnel.catalogue import find_algorithm
from windtunnel.core.artifacts import AssessmentResult, base_data, base_kwargs
from windtunnel.core.batches import progress_bar
from windtunnel.core.binomial import binomial_rate
from windtunnel.core.contracts import Caveat, Json, PerturbationDistribution, Semantics, Verdict
from windtunnel.core.subject import Subject
from windtunnel.corruptions.corrupt import CHUNK, Job, run_jobs
from windtunnel.corruptions.table import SUITES, family_of
from windtunnel.params.corruptions import CorruptionEntry

NEVER = 6  # minimal severity of a sample that no severity up to 5 breaks


@dataclass(frozen=True, slots=True)
class Corrupted:
    """The samples under one corruption: inputs float32 (N, C, H, W), predictions int64 (N,)."""

    corruption: str
    severity: int
    inputs: Tensor
    predictions: Tensor

    @property
    def name(self) -> str:
        """`fog-3`: the directory of its assessment, under the suite's."""
        return f"{self.corruption}-{self.severity}"


def assess_suite(
    name: str, entry: CorruptionEntry, subject: Subject
) -> tuple[AssessmentResult, list[AssessmentResult]]:
    """(the suite's result, one result per corruption and severity).

    Extra keys of the suite's robustness_data.pt: `corruption_predictions` int64 (P, N) in the order of
    kwargs.corruptions, `quantised_predictions` int64 (N,) (severity 0: 8-bit rounding alone), `minimal_severity` int64
    (N,), 6 for a sample that no severity breaks. `perturbed_inputs` are each sample under the mildest corruption that
    breaks it, or under the last one.
    """
    names = SUITES.get(entry.algorithm, (entry.algorithm,))
    pairs = [(corruption, severity) for corruption in names for severity in entry.severities]
    pixels = _eight_bits(subject.dataset.inputs)
    found = _corrupt_all(name, entry, pairs, pixels, subject)
    quantised = subject.classifier.predict(_floats(pixels))
    return _suite_result(name, entry, found, quantised, subject), [_child(name, entry, c, subject) for c in found]


def _eight_bits(inputs: Tensor) -> np.ndarray:
    """Float images (N, C, H, W) in [0, 1] as uint8 (N, H, W, C)."""
    rounded: np.ndarray = (inputs * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return rounded


def _floats(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float() / 255


def _corrupt_all(
    name: str, entry: CorruptionEntry, pairs: Sequence[tuple[str, int]], pixels: np.ndarray, subject: Subject
) -> list[Corrupted]:
    n, ids = len(pixels), subject.dataset.ids
    starts = range(0, n, CHUNK)
    jobs = [
        Job(corruption, severity, pixels[s : s + CHUNK], ids[s : s + CHUNK], subject.seed, entry.upsample)
        for corruption, severity in pairs
        for s in starts
    ]
    results, found = run_jobs(jobs, entry.workers), []
    with progress_bar() as progress:
        task = progress.add_task(name, total=len(pairs) * n)
        for corruption, severity in pairs:
            parts = []
            for _ in starts:
                parts.append(next(results))
                progress.advance(task, len(parts[-1]))
            inputs = _floats(np.concatenate(parts))
            # The model works while the processes corrupt what comes next.
            found.append(Corrupted(corruption, severity, inputs, subject.classifier.predict(inputs)))
    return found


def _child(name: str, entry: CorruptionEntry, corrupted: Corrupted, subject: Subject) -> AssessmentResult:
    row = find_algorithm(entry.library, corrupted.corruption, f"corruptions.{name}", "corruptions")
    correct = corrupted.predictions == subject.dataset.targets
    return AssessmentResult(
        name=corrupted.name,
        semantics=Semantics(row, PerturbationDistribution(corrupted.corruption, corrupted.severity)),
        data={
            **base_data(subject, _verdicts(correct)),
            "perturbed_inputs": corrupted.inputs,
            "perturbed_predictions": corrupted.predictions,
        },
        metrics=accuracy_metrics(
            correct, subject.clean_predictions, corrupted.predictions, subject.clean_correct, entry
        ),
        caveats=_caveats(entry),
        kwargs={
            **base_kwargs(subject),
            "ci_method": entry.ci_method,
            "ci_level": entry.ci_level,
            "upsample": entry.upsample,
        },
        library_package="imagecorruptions",
    )


def accuracy_metrics(
    correct: Tensor, clean: Tensor, predictions: Tensor, clean_correct: Tensor, entry: CorruptionEntry
) -> dict[str, Json]:
    """Corrupted accuracy with its interval, and how many predictions flipped against clean."""
    rate = binomial_rate(int(correct.sum()), len(correct), entry.ci_level, entry.ci_method)
    before = binomial_rate(int(clean_correct.sum()), len(correct), entry.ci_level, entry.ci_method)
    return {
        **before.metrics("clean_accuracy"),
        "corrupted_accuracy": rate.value,
        "accuracy_ci_low": rate.low,
        "accuracy_ci_high": rate.high,
        "corrupted_accuracy_ci_low": rate.low,
        "corrupted_accuracy_ci_high": rate.high,
        "n_samples": rate.n,
        "n_correct": rate.successes,
        "prediction_flips": int((predictions != clean).sum()),
    }


def _suite_result(
    name: str, entry: CorruptionEntry, found: Sequence[Corrupted], quantised: Tensor, subject: Subject
) -> AssessmentResult:
    targets, n = subject.dataset.targets, len(subject.dataset)
    predictions = torch.stack([c.predictions for c in found])
    correct = predictions == targets
    minimal = torch.full((n,), NEVER)
    inputs, shown = found[-1].inputs.clone(), found[-1].predictions.clone()
    for row, corrupted in enumerate(found):
        milder = ~correct[row] & (corrupted.severity < minimal)
        minimal[milder] = corrupted.severity
        inputs[milder], shown[milder] = corrupted.inputs[milder], corrupted.predictions[milder]
    data = {
        **base_data(subject, _verdicts(minimal == NEVER)),
        "perturbed_inputs": inputs,
        "perturbed_predictions": shown,
        "corruption_predictions": predictions,
        "quantised_predictions": quantised,
        "minimal_severity": minimal,
    }
    pairs: list[Json] = [[c.corruption, c.severity] for c in found]
    row_of_suite = find_algorithm(entry.library, entry.algorithm, f"corruptions.{name}", "corruptions")
    caveats = [*_caveats(entry), *_not_monotone(found, targets)]
    return AssessmentResult(
        name=name,
        semantics=Semantics(row_of_suite, PerturbationDistribution(entry.algorithm, max(entry.severities))),
        data=data,
        metrics=suite_metrics(predictions, quantised, minimal, subject, [(c.corruption, c.severity) for c in found]),
        caveats=tuple(caveats),
        kwargs={**base_kwargs(subject), "corruptions": pairs, "severities": list(entry.severities), "upsample": entry.upsample,
                "ci_method": entry.ci_method, "ci_level": entry.ci_level},
        library_package="imagecorruptions",
    )  # fmt: skip


def suite_metrics(
    predictions: Tensor, quantised: Tensor, minimal: Tensor, subject: Subject, pairs: Sequence[tuple[str, int]]
) -> dict[str, Json]:
    """Means over the suite, by family and by severity; the worst corruption; severity 0; minimal severities."""
    targets, n = subject.dataset.targets, len(subject.dataset)
    accuracy = (predictions == targets).double().mean(1)
    clean = binomial_rate(int(subject.clean_correct.sum()), n)
    by_corruption = {
        c: _mean(accuracy, pairs, lambda pair, c=c: pair[0] == c) for c in dict.fromkeys(c for c, _ in pairs)
    }
    families = dict.fromkeys(family_of(c) for c, _ in pairs)
    severities = sorted({s for _, s in pairs})
    curve: list[Json] = [_mean(accuracy, pairs, lambda pair, s=s: pair[1] == s) for s in severities]
    worst = min(by_corruption, key=lambda c: by_corruption[c])
    quantised_accuracy = float((quantised == targets).double().mean())
    return {
        **clean.metrics("clean_accuracy"),
        "corrupted_accuracy": float(accuracy.mean()),
        "n_samples": n,
        "mean_corruption_error": 1 - float(np.mean(list(by_corruption.values()))),
        "accuracy_by_corruption": dict(by_corruption),
        "accuracy_by_family": {f: _mean(accuracy, pairs, lambda pair, f=f: family_of(pair[0]) == f) for f in families},
        "severities": list(severities),
        "accuracy_by_severity": curve,
        "accuracy_by_pair": accuracy.tolist(),
        "worst_corruption": worst,
        "worst_corruption_accuracy": by_corruption[worst],
        "severity_0_accuracy": quantised_accuracy,
        "quantisation_change": quantised_accuracy - clean.value,
        "prediction_flips": int((predictions != subject.clean_predictions).sum()),
        "minimal_severity_histogram": [int((minimal == s).sum()) for s in (*severities, NEVER)],
        "never_broken": float((minimal == NEVER).double().mean()),
    }


def _mean(accuracy: Tensor, pairs: Sequence[tuple[str, int]], keep: object) -> float:
    assert callable(keep)
    return float(accuracy[[i for i, pair in enumerate(pairs) if keep(pair)]].mean())


def _verdicts(correct: Tensor) -> Tensor:
    return torch.where(correct, int(Verdict.CORRECT_UNDER_PERTURBATION), int(Verdict.MISCLASSIFIED_UNDER_PERTURBATION))


def _caveats(entry: CorruptionEntry) -> tuple[Caveat, ...]:
    found = []
    if entry.upsample:
        found.append(
            Caveat(
                "upsampled",
                f"Images were resized to {entry.upsample} px, corrupted and resized back: resizing smooths noise and blur, "
                f"so severities here are milder than the benchmark's and no mCE of others compares.",
            )
        )
    return tuple(found)


def _not_monotone(found: Sequence[Corrupted], targets: Tensor) -> list[Caveat]:
    """Corruptions under which the model does better at a higher severity, beyond the interval."""
    odd = []
    for corruption in dict.fromkeys(c.corruption for c in found):
        curve = [int((c.predictions == targets).sum()) for c in found if c.corruption == corruption]
        for milder, harder in zip(curve, curve[1:], strict=False):
            if binomial_rate(harder, len(targets)).low > binomial_rate(milder, len(targets)).high:
                odd.append(corruption)
    if not odd:
        return []
    return [Caveat("rises_with_severity", f"Accuracy rises with severity under {', '.join(dict.fromkeys(odd))}.")]
