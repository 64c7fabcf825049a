"""The pipeline of a corruption suite: every (corruption, severity) is an assessment, and so is the suite."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.corruptions.jobs import Job, run_job, there_and_back
from windtunnel.assessments.corruptions.metrics import NEVER, Interval, SuiteData, accuracy_metrics, suite_metrics
from windtunnel.assessments.corruptions.reference import ALEXNET, Pair, Reference, reference_of
from windtunnel.assessments.corruptions.rows import COMMON, IMAGECORRUPTIONS, CorruptionRow
from windtunnel.assessments.corruptions.table import corruptions_of
from windtunnel.assessments.task import Task
from windtunnel.core import scratch
from windtunnel.core.batches import Batch, Incidents, rows_of_table
from windtunnel.core.contracts import Caveat, Json, PerturbationDistribution, Semantics, Verdict
from windtunnel.core.scratch import put_samples, sample_parts
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs, write_artifacts
from windtunnel.records.metadata import number, numbers, part_name
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.records.storage import keep_images
from windtunnel.records.tables import table, write_csv
from windtunnel.registry.plugins import library_of
from windtunnel.runtime.batch_runner import Checkpoint, each_batch
from windtunnel.runtime.executors import MOST_WORKERS
from windtunnel.runtime.placement import share_of_processors

# Pixels to corrupt that are worth the seconds in which other processes start (about 5 s of work).
WORTH_PROCESSES = 2**25
_NOTHING = -2  # where a batch was lost, a prediction until the corruption is whole
# Severity 0, what every corruption has in common: 8-bit rounding alone, and with `upsample` resizing there and back.
_ROUNDED, _RESIZED = "rounded", "resized"


@dataclass(frozen=True, slots=True)
class Corrupted:
    """The samples under one corruption, or none at severity 0.

    inputs: float32 (N, C, H, W). predictions: int64 (N,). lost: bool (N,), those without a result.
    The next corruption overwrites `inputs`.
    """

    corruption: str
    severity: int
    inputs: Tensor
    predictions: Tensor
    lost: Tensor

    @property
    def name(self) -> str:
        """`fog-3`: the directory of its assessment, under the suite's."""
        return part_name(self.corruption, self.severity)


def assess_suite(
    name: str, entry: CorruptionEntry, subject: Subject, keep: Callable[[AssessmentResult], None]
) -> AssessmentResult:
    """Run a suite; `keep` gets the result of each corruption and severity as it is done, so that only one is in memory:
    the next one overwrites its images.

    A killed suite continues after the batches that were finished. Extra keys of the suite's
    robustness_data.pt: `corruption_predictions` int64 (P, N) in the order of kwargs.corruptions, `quantised_predictions`
    int64 (N,) (severity 0: 8-bit rounding alone), `resized_predictions` int64 (N,) with `upsample` (rounded, resized and
    resized back), `minimal_severity` int64 (N,), 6 for a sample that no severity breaks, and with a windtunnel suite as
    reference `reference_wrong` bool (P + 1, N), its clean errors last. `perturbed_inputs` are each sample under the
    mildest corruption that breaks it, or under the last one.
    Raises UserError where the reference does not fit the samples, or a corruption fails.
    """
    where = f"corruptions.{name}"
    rows = corruptions_of(entry, where)
    pairs = [(corruption, severity) for corruption in rows for severity in entry.severities]
    reference = reference_of(where, entry, pairs, subject.dataset)
    unchanged = [(corruption, 0) for corruption in ((_ROUNDED, _RESIZED) if entry.upsample else (_ROUNDED,))]
    units = _CorruptedBatches(entry, rows, [*unchanged, *pairs], _eight_bits(subject.dataset.inputs), subject)
    mildest = Mildest.of(subject)
    checkpoint = Checkpoint.of(name, subject, units.pairs, entry.upsample, entry.batch_size)
    incidents = Incidents()
    severity_0: dict[str, Tensor] = {}
    for corrupted in units.corrupt_all(name, checkpoint, incidents):
        mildest.lost |= corrupted.lost
        if corrupted.severity == 0:
            severity_0[corrupted.corruption] = corrupted.predictions
        else:
            mildest.add(corrupted, subject.dataset.targets)
            keep(_child(corrupted, rows[corrupted.corruption], entry, subject))
    checkpoint.clear()
    suite = SuiteData(
        pairs=pairs,
        predictions=torch.stack(mildest.predictions),
        clean=subject.clean_predictions,
        quantised=severity_0[_ROUNDED],
        resized=severity_0.get(_RESIZED),
        targets=subject.dataset.targets,
        minimal=mildest.severity,
        library=entry.library,
    )
    result = _suite_result(name, entry, suite, mildest, subject, reference)
    return replace(result, caveats=(*result.caveats, *incidents.caveats(subject.dataset.ids)))


@dataclass(slots=True)
class Mildest:
    """State of a suite: predictions under every corruption, and each sample under the mildest that breaks it."""

    predictions: list[Tensor]
    severity: Tensor
    inputs: Tensor
    shown: Tensor
    lost: Tensor

    @classmethod
    def of(cls, subject: Subject) -> Mildest:
        """Return the initial state: every sample unbroken and shown uncorrupted."""
        unbroken = torch.full((len(subject.dataset),), NEVER)
        no_samples = torch.zeros(len(unbroken), dtype=torch.bool)
        return cls([], unbroken, scratch.copy_of(subject.dataset.inputs), subject.clean_predictions.clone(), no_samples)

    def add(self, corrupted: Corrupted, targets: Tensor) -> None:
        """Remember one corruption; a sample that is not broken yet is shown under the latest one."""
        self.predictions.append(corrupted.predictions)
        breaks = (corrupted.predictions != targets) & (corrupted.severity < self.severity)
        shows = breaks | (self.severity == NEVER)
        indices = shows.nonzero().flatten()
        put_samples(self.inputs, indices, corrupted.inputs, indices)
        self.shown[shows] = corrupted.predictions[shows]
        self.severity[breaks] = corrupted.severity


def _eight_bits(inputs: Tensor) -> np.ndarray:
    """Float images (N, C, H, W) in [0, 1] as uint8 (N, H, W, C)."""
    n, channels, height, width = inputs.shape
    rounded = scratch.empty((n, height, width, channels), torch.uint8)
    for part in sample_parts(inputs):
        rounded[part] = (inputs[part] * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    pixels: np.ndarray = rounded.numpy()
    return pixels


def _floats(pixels: np.ndarray, into: Tensor | None = None) -> Tensor:
    """uint8 images (N, H, W, C) as float images (N, C, H, W) in [0, 1], in the memory of `into` where it is given."""
    # Reordered as bytes: a third of the time.
    ordered = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    return (torch.empty(ordered.shape) if into is None else into).copy_(ordered).div_(255)


@dataclass(frozen=True, slots=True)
class _CorruptedBatches:
    """Units of work: a batch of samples under one (corruption, severity), for every one of them in turn, severity 0 first."""

    entry: CorruptionEntry
    rows: Mapping[str, CorruptionRow]
    pairs: Sequence[Pair]
    pixels: np.ndarray
    subject: Subject

    @property
    def batches(self) -> list[Batch]:
        """All of them, numbered through."""
        parts = torch.arange(len(self.pixels)).split(self.entry.batch_size)
        # The seeds are those of the images.
        return [
            Batch(number, indices, 0) for number, indices in enumerate(indices for _ in self.pairs for indices in parts)
        ]

    def pair(self, batch: Batch) -> int:
        """Index of the (corruption, severity) that a batch is under."""
        return batch.number // ceil(len(self.pixels) / self.entry.batch_size)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return the corrupted pixels, uint8 (n, H, W, C), and their predictions, int64 (n,)."""
        corrupted = self._corrupted(*self.pairs[self.pair(batch)], batch.indices)
        predictions = self.subject.classifier.predict(_floats(corrupted), self.subject.dataset.targets[batch.indices])
        return {"pixels": torch.from_numpy(corrupted), "predictions": predictions}

    def _corrupted(self, corruption: str, severity: int, indices: Tensor) -> np.ndarray:
        images: np.ndarray = self.pixels[indices.numpy()]
        dataset, run_seed = self.subject.dataset, self.subject.seed
        if corruption == _ROUNDED:
            return images
        if corruption == _RESIZED:
            assert self.entry.upsample
            return there_and_back(images, self.entry.upsample)
        # The seed of an image depends on its id, so that neither its place nor its neighbours matter.
        samples = tuple(dataset.ids[i] for i in indices.tolist())
        seeds = tuple(derive_seed(run_seed, "corruption", sample, corruption, severity) for sample in samples)
        labels = dataset.targets[indices].tolist() if dataset.labelled else []
        names = tuple(dataset.class_names[label] for label in labels)
        row = self.rows[corruption]
        return run_job(Job(row, severity, images, seeds, self.entry, samples, names, dataset.metadata))

    @property
    def untouched(self) -> dict[str, Tensor]:
        """The clean samples without predictions: the result of a batch that no worker finished."""
        return {"pixels": torch.from_numpy(self.pixels), "predictions": torch.full((len(self.pixels),), _NOTHING)}

    def corrupt_all(self, name: str, checkpoint: Checkpoint, incidents: Incidents) -> Iterator[Corrupted]:
        """Yield the samples under each of the pairs, in their order."""
        n, side = len(self.pixels), self.entry.upsample or max(self.pixels.shape[1:3])
        # Allocated once: blocks of this size, freed and asked for again, leave holes that add up to gigabytes.
        inputs = scratch.empty(self.subject.dataset.inputs.shape)
        predictions, filled = torch.empty(n, dtype=torch.int64), 0
        results = each_batch(
            self.batches,
            self,
            name=name,
            checkpoint=checkpoint,
            without=rows_of_table(self.untouched),
            incidents=incidents,
            processes=min(share_of_processors(), MOST_WORKERS)
            if len(self.pairs) * n * side**2 > WORTH_PROCESSES
            else 1,
        )
        for batch, part in results:
            indices = slice(filled, filled + len(batch.indices))
            _floats(part["pixels"].numpy(), inputs[indices])
            predictions[indices], filled = part["predictions"], indices.stop
            if filled == n:
                lost = predictions == _NOTHING
                predictions[lost] = -1  # a prediction of nothing, as of a model that gives NaN
                yield Corrupted(*self.pairs[self.pair(batch)], inputs, predictions, lost)
                predictions, filled = torch.empty(n, dtype=torch.int64), 0


def _child(corrupted: Corrupted, row: CorruptionRow, entry: CorruptionEntry, subject: Subject) -> AssessmentResult:
    targets = subject.dataset.targets
    return AssessmentResult(
        name=corrupted.name,
        semantics=Semantics(row.algorithm, PerturbationDistribution(corrupted.corruption, corrupted.severity)),
        data={
            **base_data(subject, _verdicts(corrupted.predictions == targets, corrupted.lost)),
            "perturbed_inputs": corrupted.inputs,
            "perturbed_predictions": corrupted.predictions,
        },
        metrics=accuracy_metrics(corrupted.predictions, subject.clean_predictions, targets, _interval(entry)),
        caveats=_upsampled(entry),
        kwargs={**base_kwargs(subject), **_options(entry)},
        call_kwargs=_called_with(entry, subject, corrupted.corruption, corrupted.severity),
        library_package=library_of(entry.library, "corruptions").package,
    )


def _suite_result(
    name: str, entry: CorruptionEntry, suite: SuiteData, mildest: Mildest, subject: Subject, reference: Reference | None
) -> AssessmentResult:
    interval = _interval(entry)
    data: Tensors = {
        **base_data(subject, _verdicts(suite.minimal == NEVER, mildest.lost)),
        "perturbed_inputs": mildest.inputs,
        "perturbed_predictions": mildest.shown,
        "corruption_predictions": suite.predictions,
        "quantised_predictions": suite.quantised,
        "minimal_severity": suite.minimal,
    }
    if suite.resized is not None:
        data["resized_predictions"] = suite.resized
    if reference is not None and reference.digest:
        data["reference_wrong"] = torch.from_numpy(reference.wrong) > 0
    shown_pairs: list[Json] = [[corruption, severity] for corruption, severity in suite.pairs]
    metrics = suite_metrics(suite, interval, reference)
    caveats = [*_upsampled(entry, metrics), *_not_monotone(suite, interval), *_about_mce(suite, reference, metrics)]
    compared = {"reference": {"name": reference.name, "model_digest": reference.digest}} if reference else {}
    algorithm = find_algorithm(entry.library, entry.algorithm, f"corruptions.{name}", "corruptions")
    return AssessmentResult(
        name=name,
        semantics=Semantics(algorithm, PerturbationDistribution(entry.algorithm, severities=entry.severities)),
        data=data,
        metrics=metrics,
        caveats=tuple(caveats),
        kwargs={
            **base_kwargs(subject),
            "corruptions": shown_pairs,
            "severities": list(entry.severities),
            "verdict_definition": VERDICT_DEFINITION,
            **_options(entry),
            **compared,
        },
        call_kwargs=_called_with(
            entry, subject, [*dict.fromkeys(corruption for corruption, _ in suite.pairs)], list(entry.severities)
        ),
        library_package=library_of(entry.library, "corruptions").package,
    )


# A sample has one verdict, a suite many corruptions: the strictest reading, of which `never_broken` is the share.
VERDICT_DEFINITION = (
    "correct_under_perturbation: classified as its label under every corruption at every severity of the suite; "
    "misclassified_under_perturbation: wrong under at least one. Their counts are no accuracy: corrupted_accuracy is the mean "
    "over corruptions and severities."
)


def _called_with(
    entry: CorruptionEntry, subject: Subject, corruption: str | list[str], severity: int | list[int]
) -> dict[str, object]:
    """Return the library's arguments: one image at a time, after `upsample`."""
    channels, height, width = subject.dataset.inputs.shape[1:]
    if entry.upsample:
        height = width = entry.upsample
    depth = 3 if entry.library == IMAGECORRUPTIONS else channels
    image = np.broadcast_to(np.uint8(0), (height, width, depth))  # only its shape is recorded
    return {"image": image, "corruption_name": corruption, "severity": severity}


def _interval(entry: CorruptionEntry) -> Interval:
    return Interval(entry.ci_method, entry.ci_level)


def _options(entry: CorruptionEntry) -> dict[str, Json]:
    return {"ci_method": entry.ci_method, "ci_level": entry.ci_level, "upsample": entry.upsample}


def _verdicts(correct: Tensor, without_result: Tensor) -> Tensor:
    """Return the verdicts; a sample without a result is neither, and its prediction of nothing counts as wrong in every rate."""
    right, wrong, error = (
        int(v) for v in (Verdict.CORRECT_UNDER_PERTURBATION, Verdict.MISCLASSIFIED_UNDER_PERTURBATION, Verdict.ERROR)
    )
    return torch.where(without_result, error, torch.where(correct, right, wrong))


def _upsampled(entry: CorruptionEntry, metrics: dict[str, Json] | None = None) -> tuple[Caveat, ...]:
    if not entry.upsample:
        return ()
    measured = ""
    if metrics:
        change = number(metrics, "resizing_change")
        measured = f" Resizing there and back, without any corruption, changes accuracy by {100 * change:+.1f} points."
    return (
        Caveat(
            "upsampled",
            f"Images were resized to {entry.upsample} px, corrupted and resized back: resizing smooths noise and blur, "
            f"so severities here are milder than the benchmark's and no mCE of others compares.{measured}",
        ),
    )


def _not_monotone(suite: SuiteData, interval: Interval) -> list[Caveat]:
    """Corruptions under which the model does better at a higher severity, beyond the interval."""
    odd = []
    rates = [interval.of(row) for row in suite.predictions == suite.targets]
    for corruption in dict.fromkeys(c for c, _ in suite.pairs):
        curve = [rate for rate, (c, _) in zip(rates, suite.pairs, strict=True) if c == corruption]
        if any(harder.low > milder.high for milder, harder in zip(curve, curve[1:], strict=False)):
            odd.append(corruption)
    if not odd:
        return []
    return [Caveat("rises_with_severity", f"Accuracy rises with severity under {', '.join(odd)}.")]


def _about_mce(suite: SuiteData, reference: Reference | None, metrics: dict[str, Json]) -> list[Caveat]:
    if reference is None:
        return []
    caveats = []
    absent = [name for name in COMMON if any((name, severity) not in suite.pairs for severity in range(1, 6))]
    if absent:
        caveats.append(
            Caveat(
                "mce_partial",
                "mCE is defined over 15 corruptions at severities 1 to 5; this one is the mean over what this suite ran, "
                "and compares with no published mCE.",
            )
        )
    if reference.name == ALEXNET:
        caveats.append(
            Caveat(
                "mce_reference",
                "mCE divides by AlexNet's published errors, which are of the ImageNet validation set; of the data here only "
                "the class count and the size were checked.",
            )
        )
    undefined, relative = (table(tuple[str, ...], metrics, f"{prefix}mce_undefined") for prefix in ("", "relative_"))
    relative = tuple(name for name in relative if name not in undefined)
    for names, what in ((undefined, "mCE and relative mCE"), (relative, "relative mCE")):
        if names:
            caveats.append(
                Caveat("mce_undefined", f"{what} leave out {', '.join(names)}: the reference loses no accuracy there.")
            )
    return caveats


def run(task: Task[CorruptionEntry]) -> AssessmentResult:
    """Run one suite. The children are on disk before it: its sample sheet is drawn from them."""
    started = time.time()

    def keep(child: AssessmentResult) -> None:
        child = keep_images(child, task.entry.kept_inputs)
        write_artifacts(child, task.directory / child.name, task.subject, started=started)

    return assess_suite(task.name, task.entry, task.subject, keep)


def write_severity_series(suite: Artifacts, path: Path) -> None:
    """Write a row per severity, 0 (8-bit rounding alone) first: severity, mean accuracy with its interval."""
    columns = ("accuracy", "ci_low", "ci_high")
    names = [("severity_0_accuracy" + end, "accuracy_by_severity" + end) for end in ("", "_ci_low", "_ci_high")]
    curves = [[suite.metrics[zero], *numbers(suite.metrics, rest)] for zero, rest in names]
    severities = [0, *map(int, numbers(suite.metrics, "severities"))]
    rows = [
        {"severity": s, **dict(zip(columns, values, strict=True))}
        for s, *values in zip(severities, *curves, strict=True)
    ]
    write_csv(path, ("severity", *columns), rows)
