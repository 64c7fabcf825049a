"""The pipeline of a corruption suite: every (corruption, severity) is an assessment, and so is the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    name: str, entry: CorruptionEntry, subject: Subject, keep: Callable[[AssessmentResult], None]
) -> AssessmentResult:
    """Run a suite; `keep` gets the result of each corruption and severity as it is done, so that only one is in memory.

    Extra keys of the suite's robustness_data.pt: `corruption_predictions` int64 (P, N) in the order of
    kwargs.corruptions, `quantised_predictions` int64 (N,) (severity 0: 8-bit rounding alone), `minimal_severity` int64
    (N,), 6 for a sample that no severity breaks. `perturbed_inputs` are each sample under the mildest corruption that
    breaks it, or under the last one.
    """
    names = SUITES.get(entry.algorithm, (entry.algorithm,))
    pairs = [(corruption, severity) for corruption in names for severity in entry.severities]
    pixels = _eight_bits(subject.dataset.inputs)
    mildest = Mildest.of(subject)
    for corrupted in _corrupt_all(name, entry, pairs, pixels, subject):
        mildest.add(corrupted, subject.dataset.targets)
        keep(_child(name, entry, corrupted, subject))
    quantised = subject.classifier.predict(_floats(pixels))
    return _suite_result(name, entry, mildest, pairs, quantised, subject)


@dataclass(slots=True)
class Mildest:
    """What a suite remembers: predictions under every corruption, and each sample under the mildest that breaks it."""

    predictions: list[Tensor]
    severity: Tensor
    inputs: Tensor
    shown: Tensor

    @classmethod
    def of(cls, subject: Subject) -> Mildest:
        """Nothing corrupted yet."""
        unbroken = torch.full((len(subject.dataset),), NEVER)
        return cls([], unbroken, subject.dataset.inputs.clone(), subject.clean_predictions.clone())

    def add(self, corrupted: Corrupted, targets: Tensor) -> None:
        """Remember one corruption; a sample that is not broken yet is shown under the latest one."""
        self.predictions.append(corrupted.predictions)
        breaks = (corrupted.predictions != targets) & (corrupted.severity < self.severity)
        shows = breaks | (self.severity == NEVER)
        self.inputs[shows], self.shown[shows] = corrupted.inputs[shows], corrupted.predictions[shows]
        self.severity[breaks] = corrupted.severity


def _eight_bits(inputs: Tensor) -> np.ndarray:
    """Float images (N, C, H, W) in [0, 1] as uint8 (N, H, W, C)."""
    rounded: np.ndarray = (inputs * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return rounded


def _floats(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float() / 255


def _corrupt_all(
    name: str, entry: CorruptionEntry, pairs: Sequence[tuple[str, int]], pixels: np.ndarray, subject: Subject
) -> Iterator[Corrupted]:
    n, ids = len(pixels), subject.dataset.ids
    starts = range(0, n, CHUNK)
    jobs = [
        Job(corruption, severity, pixels[s : s + CHUNK], ids[s : s + CHUNK], subject.seed, entry.upsample)
        for corruption, severity in pairs
        for s in starts
    ]
    results = run_jobs(jobs, entry.workers)
    with progress_bar() as progress:
        task = progress.add_task(name, total=len(pairs) * n)
        for corruption, severity in pairs:
            parts = []
            for _ in starts:
                parts.append(next(results))
                progress.advance(task, len(parts[-1]))
            inputs = _floats(np.concatenate(parts))
            # The model works while the processes corrupt what comes next.
            yield Corrupted(corruption, severity, inputs, subject.classifier.predict(inputs))


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
    name: str,
    entry: CorruptionEntry,
    mildest: Mildest,
    pairs: Sequence[tuple[str, int]],
    quantised: Tensor,
    subject: Subject,
) -> AssessmentResult:
    predictions, minimal = torch.stack(mildest.predictions), mildest.severity
    data = {
        **base_data(subject, _verdicts(minimal == NEVER)),
        "perturbed_inputs": mildest.inputs,
        "perturbed_predictions": mildest.shown,
        "corruption_predictions": predictions,
        "quantised_predictions": quantised,
        "minimal_severity": minimal,
    }
    shown_pairs: list[Json] = [[corruption, severity] for corruption, severity in pairs]
    row_of_suite = find_algorithm(entry.library, entry.algorithm, f"corruptions.{name}", "corruptions")
    caveats = [*_caveats(entry), *_not_monotone(predictions, pairs, entry, subject.dataset.targets)]
    return AssessmentResult(
        name=name,
        semantics=Semantics(row_of_suite, PerturbationDistribution(entry.algorithm, max(entry.severities))),
        data=data,
        metrics=suite_metrics(predictions, quantised, minimal, subject, pairs),
        caveats=tuple(caveats),
        kwargs={**base_kwargs(subject), "corruptions": shown_pairs, "severities": list(entry.severities), "upsample": entry.upsample,
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


def _not_monotone(
    predictions: Tensor, pairs: Sequence[tuple[str, int]], entry: CorruptionEntry, targets: Tensor
) -> list[Caveat]:
    """Corruptions under which the model does better at a higher severity, beyond the interval."""
    odd, correct = [], (predictions == targets).sum(1).tolist()
    for corruption in dict.fromkeys(c for c, _ in pairs):
        curve = [n for n, (c, _) in zip(correct, pairs, strict=True) if c == corruption]
        rates = [binomial_rate(n, len(targets), entry.ci_level, entry.ci_method) for n in curve]
        if any(harder.low > milder.high for milder, harder in zip(rates, rates[1:], strict=False)):
            odd.append(corruption)
    if not odd:
        return []
    return [Caveat("rises_with_severity", f"Accuracy rises with severity under {', '.join(dict.fromkeys(odd))}.")]
