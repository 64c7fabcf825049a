"""The artifact contract: write the files of an assessment and read them back."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import socket
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.contracts import (
    VERDICT_CODES,
    AssessmentKind,
    Caveat,
    Json,
    Norm,
    Objective,
    PerturbationBudget,
    Randomness,
    Semantics,
)
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.scratch import same_values
from windtunnel.core.seeds import random_runs
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import budget_text
from windtunnel.records.files import DATA_FILE, METADATA_FILE, cannot_be_written, file_digest, plain_json, write_json
from windtunnel.records.metadata import FigureRecord, Metadata, Metrics, Rate, SemanticsRecord, rate, read_metadata
from windtunnel.records.result import AssessmentResult, Tensors, plain_tensors, tensor_in, tensors_in
from windtunnel.records.run_times import RUN_TIMES, Runtime, commit, measured_run_times, peak_memory, run_time_metrics
from windtunnel.records.storage import IMAGES, KEPT, distances_of, of_samples, search_form, stored_form

REQUIRED_KEYS = ("clean_inputs", "targets", "clean_predictions", "verdicts")
_PROVENANCE_PACKAGES = ("windtunnel", "torch", "numpy", "scipy")


@dataclass(frozen=True, repr=False)
class Artifacts:
    """One assessment directory, read back: `data` as in robustness_data.pt, `metadata` as in metadata.json.

    Where the seconds a sample took are known, `data` has them: robustness_data.pt holds their key alone (`records.run_times`).
    numbers: of its samples in the assessment that they were taken from (`pictured`); None where they are all of one.
    """

    name: str
    directory: Path
    data: Tensors
    metadata: Metadata
    numbers: tuple[int, ...] | None = None

    @property
    def flat_tensors(self) -> dict[str, Tensor]:
        """Tensors of `data` that are not in a dictionary of tensors."""
        return plain_tensors(self.data)

    def tensor(self, key: str) -> Tensor:
        """Return the tensor under `key`. Raises KeyError where the assessment has none."""
        return tensor_in(self.data, key)

    def tensors(self, key: str) -> dict[str, Tensor]:
        """Return the tensors below `key`, by name. Raises KeyError where the assessment has none there."""
        return tensors_in(self.data, key)

    def common_samples(self, ids: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(positions in `ids`, positions here), int64 (n,) each: the samples that both have."""
        position = {sample: i for i, sample in enumerate(ids)}
        pairs = [(position[sample], i) for i, sample in enumerate(self.sample_names) if sample in position]
        return torch.tensor([i for i, _ in pairs], dtype=torch.int64), torch.tensor(
            [j for _, j in pairs], dtype=torch.int64
        )

    def digest(self) -> str:
        """Return the sha256 of robustness_data.pt on disk, which later stages record and sanity check G2 compares."""
        return file_digest(self.directory / DATA_FILE)

    @property
    def kind(self) -> AssessmentKind:
        """The assessment kind."""
        return self.metadata.assessment_kind

    @property
    def metrics(self) -> Metrics:
        """The metrics of metadata.json."""
        return self.metadata.metrics

    @property
    def run_time_metrics(self) -> dict[str, float]:
        """Return mean, median and 95th percentile of the seconds per sample; empty where they are not known."""
        return run_time_metrics(self.tensor(RUN_TIMES).tolist()) if RUN_TIMES in self.data else {}

    @property
    def sample_names(self) -> list[str]:
        """Names of the N samples."""
        return list(self.metadata.kwargs.sample_names)

    @property
    def shown_names(self) -> list[str]:
        """Return the N sample names for a figure: their names, or numbers from 1 where `show_sample_names` is false."""
        names = self.sample_names
        if self.metadata.kwargs.show_sample_names:
            return names
        return [f"sample {i + 1}" for i in (self.numbers or range(len(names)))]

    @property
    def kept(self) -> Tensor:
        """The samples whose images are here, int64, ascending: `clean_inputs[i]` is of sample `kept[i]`."""
        return self.tensor(KEPT) if KEPT in self.data else torch.arange(len(self.tensor("targets")))

    @cached_property
    def pictured(self) -> Artifacts:
        """Return the artifacts of the samples whose images were kept; self if all were."""
        if KEPT not in self.data:
            return self
        image_indices = self.kept
        names = tuple(self.sample_names[i] for i in image_indices.tolist())
        kwargs = self.metadata.kwargs.model_copy(update={"sample_names": names})
        metadata = self.metadata.model_copy(update={"kwargs": kwargs})
        return replace(
            self, data=of_samples(self.data, image_indices), metadata=metadata, numbers=tuple(image_indices.tolist())
        )

    def distances(self, norm: Norm) -> Tensor:
        """Return the distance of each perturbed input from its clean one; float32 (N,), NaN where there is none."""
        return distances_of(self.data, norm)

    @property
    def class_names(self) -> list[str]:
        """Names of the K classes; empty where the metadata has none."""
        return list(self.metadata.kwargs.class_names)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """The caveats of metadata.json."""
        return self.metadata.all_caveats

    @property
    def headline(self) -> str:
        """Return what ran, at which budget and on how many samples, in one line."""
        m = self.metadata
        region = m.semantics.perturbation
        limits = region.corruption_name or ""
        if region.norm is not None:
            limits = f"{region.norm}, no bound" if region.epsilon is None else budget_text(region.norm, region.epsilon)
            limits += region.around
        budget = f", {limits}" if limits and self.name != "clean" else ""
        return f"{self.name}: {m.algorithm} ({m.library}){budget}, {len(self.sample_names)} samples"

    @property
    def rates(self) -> dict[str, Rate]:
        """Return every share of samples that has an interval, by the name of its metric."""
        keys = (key.removesuffix("_ci_low") for key in self.metrics if key.endswith("_ci_low"))
        numbers = (key for key in keys if isinstance(self.metrics.get(key), int | float))
        return {key: share for key in numbers if (share := rate(self.metrics, key))}

    def __repr__(self) -> str:
        lines = [f"{key.replace('_', ' ')}: {value}" for key, value in self.rates.items()]
        if self.metadata.failure:
            lines.append(f"failed: {self.metadata.failure.reason}")
        limits = [f"- {caveat.text}" for caveat in self.caveats]
        return "\n  ".join([self.headline, *lines, f"tensors: {', '.join(sorted(self.data))}", *limits])


def provenance(subject: Subject, packages: Sequence[str] = ()) -> dict[str, Json]:
    """Return versions, seed, device and digests, which decide a result together with the params. No times, no host name."""
    names = sorted({*_PROVENANCE_PACKAGES, *packages})
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in names if (version := package_version(name))},
        "seed": subject.seed,
        "device": str(subject.classifier.device),
        "threads_deterministic": torch.are_deterministic_algorithms_enabled(),
        "dataset_digest": subject.dataset.digest(),
        "model_digest": subject.classifier.digest,
        "model_source": subject.classifier.source,
        **_accelerator(subject.classifier.device),
    }


def _accelerator(device: torch.device) -> dict[str, Json]:
    """Return what decides the last bits of a result on an accelerator; nothing on the CPU."""
    if device.type == "cpu":
        return {}
    facts: dict[str, Json] = {"type": device.type}
    if device.type in {"cuda", "xpu"}:
        facts["name"] = torch.get_device_module(device).get_device_name(device)
    if device.type == "cuda":
        facts |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
        }
    return {"accelerator": facts}


def package_version(name: str) -> str | None:
    """Public version of an installed distribution, None where it is not installed.

    Without the local part (`2.13.0+cpu`): a colleague's build of the same version gives equal metadata.
    """
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def base_data(subject: Subject, verdicts: Tensor) -> Tensors:
    """Return the four keys that every robustness_data.pt has."""
    return {
        "clean_inputs": subject.dataset.inputs,
        "targets": subject.dataset.targets,
        "clean_predictions": subject.clean_predictions,
        "verdicts": verdicts.long(),
    }


def base_kwargs(subject: Subject) -> dict[str, object]:
    """Return the options that every assessment records: sample ids and class names."""
    return {
        "sample_names": list(subject.dataset.ids),
        "show_sample_names": True,
        "class_names": list(subject.dataset.class_names),
    }


def semantics_record(semantics: Semantics, dataset: Dataset) -> SemanticsRecord:
    """Return the `semantics` block of metadata.json; the kind, threat model and so on come from the registry row alone."""
    row, region = semantics.algorithm, semantics.perturbation
    content = {
        "assessment_kind": row.kind,
        "case": row.kind.case,
        "threat_model": row.threat_model,
        "objective": semantics.objective,
        "perturbation": asdict(region),
        "families": sorted(row.categories),
        "stochastic": row.randomness is not Randomness.DETERMINISTIC,
        "randomness": row.randomness.value,
        "sample_selection": plain_json(dataset.selection),
        "input_metadata": plain_json(dataset.metadata),
        "norm": region.norm if isinstance(region, PerturbationBudget) else None,
        "target_classes": plain_json(semantics.target_classes) if semantics.objective is Objective.TARGETED else None,
        "minimum_norm": row.minimum_norm,
    }
    return SemanticsRecord.model_validate(content)


# Draws the figures of a result whose tensors are on disk, and says what metadata.json says of them.
Draw = Callable[[Artifacts], Sequence[FigureRecord]]


def no_figures(artifacts: Artifacts) -> Sequence[FigureRecord]:
    """Draws nothing."""
    return ()


def write_artifacts(
    result: AssessmentResult,
    directory: Path,
    subject: Subject,
    *,
    started: float,
    draw: Draw = no_figures,
    workers: int = 1,
) -> Artifacts:
    """Write robustness_data.pt, the figures, metadata.json and runtime.json into `directory`; what a reader would see.

    `started` is time.time() at the start of the assessment, `workers` the processes that computed it. But
    for runtime.json, the bytes depend only on the result: what was measured of time goes there, and how many queries a Python
    `predict` was asked in this process. Raises UserError if the data break the contract, before anything is written.
    """
    check_data(result.data, result.name)
    stored = without_run_times(stored_form(result.data, result.semantics))
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.png"):
        stale.unlink()
    save_tensors(stored, directory / DATA_FILE)
    artifacts = Artifacts(result.name, directory, result.data, metadata_of(result, subject))
    artifacts = write_metadata(artifacts, draw(artifacts))
    seconds = round(time.time() - started, 3)
    measured = tuple(artifacts.tensor(RUN_TIMES).tolist()) if RUN_TIMES in result.data else None
    Runtime(
        started=started,
        seconds=seconds,
        host=socket.gethostname(),
        commit=commit(),
        runtime_per_sample=measured,
        rows_asked=getattr(subject.classifier.module, "queries_asked", None),
        rows_repeated=getattr(subject.classifier.module, "queries_repeated", None),
        threads=torch.get_num_threads(),
        workers=workers if workers > 1 else None,
        peak_memory=peak_memory(workers),
        resolved=subject.resolved,
        data_digest=file_digest(directory / DATA_FILE),
    ).write(directory)
    return artifacts


def write_metadata(artifacts: Artifacts, figures: Sequence[FigureRecord]) -> Artifacts:
    """Write metadata.json of a result and its figures: the last file of an assessment, which marks it complete."""
    metadata = artifacts.metadata.model_copy(update={"visualisers": tuple(figures)})
    write_json(metadata.model_dump(mode="json"), artifacts.directory / METADATA_FILE)
    return replace(artifacts, metadata=metadata)


def metadata_of(result: AssessmentResult, subject: Subject) -> Metadata:
    """metadata.json of a result, without its figures."""
    row = result.semantics.algorithm
    packages = [result.library_package] if result.library_package else []
    content = {
        "name": result.name,
        "family": result.family or None,
        "assessment_kind": row.kind,
        "case": row.kind.case,
        "algorithm": row.name,
        "library": row.library,
        "library_version": package_version(result.library_package or "windtunnel") or "built in",
        "semantics": semantics_record(result.semantics, subject.dataset),
        "verdict_codes": VERDICT_CODES,
        "metrics": plain_json({key: value for key, value in result.metrics.items() if value is not None}),
        "kwargs": plain_json(result.kwargs),
        "call_kwargs": plain_json(result.call_kwargs),
        "caveats": [
            asdict(caveat)
            for caveat in (*subject.caveats, *random_runs(row, result.draws, result.caveats), *result.caveats)
        ],
        "failure": result.failure,
        "provenance": {**provenance(subject, packages), **result.provenance},
    }
    return Metadata.model_validate(content)


def read_artifacts(directory: Path, *, run_times: bool = True, search: bool = True) -> Artifacts:
    """Read an assessment directory. Raises UserError, in one line, where a file is missing, damaged or incomplete.

    `run_times`: with the seconds a sample took, where they are known. Whoever writes an output of DVC reads without them.
    `search`: the rows that were not broken hold where the search ended; without, the clean input, as the file has it.
    """
    metadata = read_metadata(directory)
    data = load_tensors(directory / DATA_FILE)
    check_data(data, str(directory))
    data = search_form(data) if search else data
    return Artifacts(metadata.name, directory, with_run_times(data, directory) if run_times else data, metadata)


def same_samples(artifacts: Artifacts, inputs: Tensor) -> bool:
    """Return True if an assessment is of the samples `inputs` (N, ...), as far as it kept their images."""
    images, image_indices = artifacts.tensor("clean_inputs"), artifacts.kept
    if KEPT not in artifacts.data:
        return same_values(images, inputs)
    return len(artifacts.tensor("targets")) == len(inputs) and torch.equal(images, inputs[image_indices])


def without_run_times(data: Tensors) -> Tensors:
    """Return `data` in the form of robustness_data.pt: run times become NaN under their key."""
    seconds = data.get(RUN_TIMES)
    return {**data, RUN_TIMES: torch.full_like(seconds, torch.nan)} if isinstance(seconds, Tensor) else data


def with_run_times(data: Tensors, directory: Path) -> Tensors:
    """Return `data`, read from `directory`, with the seconds a sample took where runtime.json has them."""
    seconds = measured_run_times(directory) if RUN_TIMES in data else None
    return data if seconds is None else {**data, RUN_TIMES: torch.tensor(seconds)}


def check_data(data: Mapping[str, Tensor | dict[str, Tensor]], where: str) -> None:
    """Raise UserError unless the four required keys are there, and every per-sample tensor is of N samples, images as many as are kept."""
    missing = [key for key in REQUIRED_KEYS if key not in data]
    if missing:
        raise UserError(f"{where}: {DATA_FILE} lacks {', '.join(missing)}")
    n, image_indices = len(data["targets"]), data.get(KEPT)
    if image_indices is not None and not _is_choice(image_indices, n):
        raise UserError(f"{where}: {DATA_FILE}: kept is no ascending list of some of the {n} samples")
    pictured = n if image_indices is None else len(image_indices)
    for key in (*REQUIRED_KEYS, "perturbed_inputs", "perturbed_predictions", "perturbation_distance"):
        rows = pictured if key in IMAGES else n
        if key in data and len(data[key]) != rows:
            samples = f"{n} samples" if rows == n else f"{rows} samples whose images are kept"
            raise UserError(f"{where}: {DATA_FILE} has {key} of {len(data[key])} samples for {samples}")


def _is_choice(indices: Tensor | dict[str, Tensor], n: int) -> bool:
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1:
        return False
    return not len(indices) or bool((indices.diff() > 0).all() and indices[0] >= 0 and indices[-1] < n)


def save_tensors(data: Tensors, path: Path) -> None:
    """Write a dictionary of tensors so that equal content gives equal bytes, and so that a kill leaves no half file."""
    tidy: Tensors = {}
    addresses: set[int] = set()
    for key, value in sorted(data.items()):
        if isinstance(value, Tensor):
            tidy[key] = _own_storage(value, addresses)
        else:
            tidy[key] = {name: _own_storage(tensor, addresses) for name, tensor in sorted(value.items())}
    # The temporary name has the final stem, which torch.save writes into the archive.
    temporary = path.parent / ".partial" / path.name
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tidy, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer raises a plain RuntimeError for a full disk
        raise cannot_be_written(path, error) from error
    finally:
        shutil.rmtree(temporary.parent, ignore_errors=True)


def load_tensors(path: Path, *, whole: bool = True) -> Tensors:
    """Read what `save_tensors` wrote, with weights_only. Raises UserError where missing or damaged.

    The values stay on disk until they are used, and the system may forget them again: a large file needs no memory. `whole`: read
    it through once, against its checksums; without, for a few samples of a large file, damage inside the values is not seen.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        if whole:
            _check_sums(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many kinds for a damaged file; all mean the same to the user
        raise UserError(f"{path}: cannot be read ({type(error).__name__}): damaged or not a tensor file") from error
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: holds a {type(loaded).__name__}, not a dictionary of tensors")
    return loaded


def _check_sums(path: Path) -> None:
    """Raise BadZipFile where a value is not the one that was written: torch does not look where it maps a file."""
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(damaged)


def _own_storage(tensor: Tensor, addresses: set[int]) -> Tensor:
    """`tensor` on the CPU with a storage of its own; a copy only where it needs one, for it may be gigabytes.

    Of a view torch.save would write the whole storage, and one storage of two tensors (`addresses`: of those written before) once.
    """
    plain = tensor.detach().cpu().contiguous()
    if plain.data_ptr() in addresses or plain.untyped_storage().nbytes() != plain.nbytes:
        plain = scratch.copy_of(plain)
    addresses.add(plain.data_ptr())
    return plain
