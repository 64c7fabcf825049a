"""Estimate a run before it starts: disk space, memory of a batch, time from one batch of every entry, and samples for a given time."""

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from windtunnel.assessments.attacks.preflight import seconds_a_sample
from windtunnel.assessments.run import result_of, task_on
from windtunnel.assessments.verification.bound_propagation.memory import counts_its_own
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.classifier import Classifier, forward_samples
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.machine import system_text, usable_processors, whole_memory
from windtunnel.core.references import users_code
from windtunnel.core.statistics import binomial_interval
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.sanity.cost import Cost, cost_of_checks
from windtunnel.operations.api.pipeline import resolved_directly
from windtunnel.operations.resolve import dependencies
from windtunnel.params.entry import Entry, Storage
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.layout import REPORTS, Layout
from windtunnel.records.result import AssessmentResult
from windtunnel.records.storage import Wanted
from windtunnel.registry.plugins import families
from windtunnel.reporting.answers import PlanAnswer
from windtunnel.runtime.executors import executor

_FLOAT = 4  # bytes
_SMALL = 160  # bytes of a sample that are neither images nor a value per class: verdicts, predictions, distances, costs
_PROGRAM = 400 * 2**20  # Python, torch and the libraries
_FEW = 1000  # samples whose images are plenty to look at


@dataclass(frozen=True, slots=True)
class Size:
    """Disk space of one entry or stage: `bytes` of all its results, of `samples` samples each."""

    name: str
    samples: int
    bytes: int


def sizes_of(params: Params, assessed: Dataset, train: Dataset | None, keep: Wanted | None = None) -> list[Size]:
    """Return the entries of params.yaml, and `data, clean, sanity, summary, report` together. `keep`: as if storage.inputs were this."""
    image, n_samples, sizes = math.prod(assessed.inputs.shape[1:]) * _FLOAT, len(assessed), []

    def result(n: int, stored_inputs: Wanted, images: int = 2) -> int:
        n_stored = n if stored_inputs == "all" else min(n, stored_inputs)
        return n_stored * images * image + n * (_SMALL + 4 * _FLOAT * assessed.num_classes)

    for family, name, entry in entries(params):
        n, record = _samples(entry, n_samples), families()[family]
        stored_inputs = dependencies.as_it_runs(family, entry, params).kept_inputs
        stored_inputs = keep if keep is not None and entry.drops_images else stored_inputs
        sizes.append(Size(f"{family}.{name}", n, record.stored_results(entry) * result(n, stored_inputs)))
    default_inputs = params.storage.inputs if keep is None else keep
    # clean, summary and report; sanity
    shared = 3 * result(n_samples, default_inputs) + result(n_samples, default_inputs, images=1)
    data = (n_samples + (len(train) if train is not None else 0)) * (image + 8)
    sizes.append(Size("data, clean, sanity, summary, report", n_samples, shared + data))
    return sizes


def no_room(params: Params, assessed: Dataset, train: Dataset | None) -> tuple[str, str]:
    """Return (the line for results that the disk cannot hold, one for those that DVC's cache cannot hold besides); empty where they fit."""
    needed = total(sizes_of(params, assessed, train))
    free = shutil.disk_usage(".").free
    available = free + _held(REPORTS)  # what lies there is replaced
    if needed <= available:
        tight = f"the results need {gigabytes(needed)}, and as much again in DVC's cache where it copies; {gigabytes(free)} are free"
        return "", tight if 2 * needed > available else ""
    stored_inputs = params.storage.inputs
    fewer = total(sizes_of(params, assessed, train, keep=_FEW))
    advice = f"storage: {{inputs: {_FEW}}} needs {gigabytes(fewer)}, " if fewer < 0.9 * needed else ""
    return (
        f"storage.inputs: {stored_inputs}: the results need {gigabytes(needed)} and {gigabytes(free)} are free on the disk; {advice}or "
        f"assess fewer samples (data.samples.n)"
    ), ""


def total(sizes: Sequence[Size]) -> int:
    """Bytes of all of them."""
    return sum(size.bytes for size in sizes)


def memory_of(params: Params, classifier: Classifier, assessed: Dataset) -> int:
    """About how many bytes the process of a stage takes at its peak, beside mapped files: its program, and one batch in the model.

    From what one sample leaves for its gradient; for a model without gradients from its inputs.
    """
    image = math.prod(assessed.inputs.shape[1:]) * _FLOAT
    stored, largest = _activation_bytes(classifier, assessed)
    forward = forward_samples(assessed.inputs) * (image + 2 * max(largest, image))
    batch = max((min(entry.batch_size, _samples(entry, len(assessed))) for _, _, entry in entries(params)), default=0)
    return _PROGRAM + max(forward, batch * (6 * image + stored + 2 * largest))


def _activation_bytes(classifier: Classifier, assessed: Dataset) -> tuple[int, int]:
    """(bytes that autograd stores of one sample, bytes of the largest tensor among them); of a model without gradients zeros."""
    if Capability.AUTOGRAD not in classifier.capabilities:
        return 0, 0
    # A quantised layer also stores dtypes and packed weights among its state.
    state = classifier.module.state_dict().values()
    weights = {value.untyped_storage().data_ptr() for value in state if isinstance(value, torch.Tensor)}
    storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address is given twice

    def store(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return tensor

    inputs = assessed.inputs[:1].clone().to(classifier.device).requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor)
    with users_code("model"), torch.enable_grad(), hooks:
        classifier.module(inputs)
    sizes = [storage.nbytes() for storage in storages.values()]
    return sum(sizes), max(sizes, default=0)


def gigabytes(size: float) -> str:
    """`1.2 GB`, `30 MB`."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"


def _samples(entry: Entry, n_samples: int) -> int:
    return min(entry.samples.n or n_samples, n_samples)


def _held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


_SAMPLED = 0.005  # seconds between looks at the memory
_IN_HALVES = frozenset({"batch_halved", "smaller_batch"})  # caveats


@dataclass(slots=True)
class _Peak:
    """The most bytes so far. on_device: of an accelerator, 0 of what has no memory of its own."""

    memory: int = 0
    on_device: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Cost of `result`. memory: the most bytes that the process had beside mapped files. on_device: the most bytes of an
    accelerator; 0 where there is none.
    """

    seconds: float
    memory: int
    on_device: int
    result: AssessmentResult

    @property
    def taken(self) -> int:
        """Bytes of the memory that limits a batch: the accelerator's, or the process's own."""
        return self.on_device or self.memory

    @property
    def in_halves(self) -> bool:
        """Return True if the memory was too small for a batch."""
        return any(caveat.code in _IN_HALVES for caveat in self.result.caveats)


def tried(
    params: Params, family: str, name: str, entry: Entry, classifier: Classifier, samples: Dataset
) -> MeasuredCost:
    """Return an entry on all of `samples`, as if it stood alone: what other entries would have left to do is not known.

    The model's own predictions are the labels, so that each sample is attacked, whether the model is trained or not.
    Raises UserError for what the entry cannot run on.
    """
    unbound: dict[str, object] = {"on": None, "examples_from": (), "reference": None, "transfer_to": {}}
    changes = {key: value for key, value in unbound.items() if key in type(entry).model_fields}
    entry = entry.model_copy(update={**changes, "samples": type(entry.samples)(), "storage": Storage()})
    subject = subject_of(classifier, replace(samples, labelled=False), params.seed)
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder:
        task = task_on(
            families()[family], resolved_directly(params, family, name, entry), subject, Layout(Path(folder))
        )
        with _peak_memory(classifier.device) as peak:
            started = time.perf_counter()
            result = result_of(families()[family], task)
            took = time.perf_counter() - started
    return MeasuredCost(took, peak.memory, peak.on_device, result)


def memory_of_a_worker(device: torch.device, workers: int) -> int:
    """Bytes that there are for each worker, of `device` or of the machine and the container, whatever is free now."""
    if counts_its_own(device):
        total: int = torch.get_device_module(device).mem_get_info(device)[1]
    else:
        total = whole_memory()
    return total // workers


@contextmanager
def _peak_memory(device: torch.device) -> Iterator[_Peak]:
    """Measure, while the block runs, the most bytes of this process in no file, and those that torch has of an accelerator."""
    peak, done = _Peak(), threading.Event()

    def watch() -> None:
        while True:
            peak.memory = max(peak.memory, _own_memory())
            if done.wait(_SAMPLED):
                return

    watching = threading.Thread(target=watch, daemon=True)
    has_memory, module = counts_its_own(device), torch.get_device_module(device)
    if has_memory:
        module.empty_cache()  # else what an earlier batch needed would count
        module.reset_peak_memory_stats(device)
    watching.start()
    try:
        yield peak
    finally:
        done.set()
        watching.join()
    if has_memory:
        peak.on_device = module.max_memory_reserved(device)


def _own_memory() -> int:
    try:
        lines = system_text(Path("/proc/self/status")).splitlines()
    except OSError:  # not Linux: what is mapped counts too
        return int(psutil.Process().memory_info().rss)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


_ALONE = 4  # samples of a method that takes minutes for each: a batch of them could take hours
_PART = 8  # an eighth of a batch, or eight times a small one, says what a batch costs whatever its size
_WORTH_SAYING = 10.0  # seconds that another batch size must save, and half of the time


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of one entry. batch: samples that were tried, in `measured` seconds. seconds: for all `samples`, over the workers.

    memory_bytes: the most that the process took beside mapped files. disk_bytes: of its results. skipped: why nothing was
    measured; the seconds and the memory are then 0. advice: the line for a batch size that does not fit, or is slow.
    """

    name: str
    samples: int
    batch: int
    measured: float
    seconds: float
    memory_bytes: int
    disk_bytes: int
    skipped: str = ""
    advice: str = ""

    @property
    def is_attack(self) -> bool:
        """True if the witness of the sanity checks makes passes in proportion to those of the entry."""
        return self.name.startswith(("attacks.", "queries."))


def estimates(
    params: Params, classifier: Classifier, assessed: Dataset, train: Dataset | None, workers: int
) -> Iterator[Estimate]:
    """One batch of each entry of params.yaml. Time grows with the samples, so that of the others is taken to be the same.

    The model's own predictions are the labels here, so that each sample is attacked, whether the model is trained or not.
    """
    sizes = {size.name: size for size in sizes_of(params, assessed, train)}
    for family, name, entry in entries(params):
        size = sizes[f"{family}.{name}"]
        why = cannot_be_tried(family, classifier)
        try:
            if not why:
                yield _measured(params, family, name, entry, classifier, assessed, size, workers)
        except UserError as error:
            why = str(error).splitlines()[0]
        if why:
            yield Estimate(size.name, size.samples, 0, 0.0, 0.0, 0, size.bytes, why)


def cannot_be_tried(family: str, classifier: Classifier) -> str:
    """Why no entry of a family can be tried on a model before the run; empty where it can."""
    if isinstance(classifier.module, PredictFunction):
        return "a Python predict is not asked: every query counts"
    return "its generative models are made by the run" if families()[family].generators else ""


def workers_there() -> int:
    """Return the number of workers of the executor; one for work that is done in this process."""
    return executor().workers or usable_processors()


def _measured(
    params: Params,
    family: str,
    name: str,
    entry: Entry,
    classifier: Classifier,
    assessed: Dataset,
    size: Size,
    workers: int,
) -> Estimate:
    few = min(size.samples, entry.batch_size)
    if entry.takes_minutes_a_sample or (family == "attacks" and seconds_a_sample(entry, assessed) > 1):
        few = min(few, _ALONE)
    several = few == entry.batch_size < size.samples and not entry.batch_size_unused

    other = math.ceil(few / _PART) if few >= _PART else min(few * _PART, size.samples)

    def on(n: int) -> MeasuredCost:
        together = entry.model_copy(update={"batch_size": max(entry.batch_size, n)})
        return tried(params, family, name, together, classifier, assessed.subset(torch.arange(n)))

    if several:
        on(other)  # libraries are imported within the first
    trial = on(few)
    beside = on(other).seconds if several else 0.0
    # A batch of several units was spread over the workers when it was timed.
    spread = max(1, min(workers, -(-size.samples // few))) if entry.batch_is_a_unit else 1
    seconds_in_all = trial.seconds * size.samples / few / spread
    advice = _too_large(entry, trial, memory_of_a_worker(classifier.device, workers))
    if several and not advice:
        each = max(0.0, (trial.seconds - beside) / (few - other))
        advice = _too_small(entry, max(0.0, trial.seconds - each * few) + each * size.samples / spread, seconds_in_all)
    line = f"{size.name}.{advice}" if advice else ""
    return Estimate(size.name, size.samples, few, trial.seconds, seconds_in_all, trial.memory, size.bytes, advice=line)


def _too_large(entry: Entry, trial: MeasuredCost, limit: int) -> str:
    """Return the line for a batch that the memory does not hold."""
    if trial.taken <= limit and not trial.in_halves:
        return ""
    return (
        f"batch_size: {entry.batch_size} takes {gigabytes(trial.taken)}, and a worker has {gigabytes(limit)}: it does not fit, or "
        f"only in halves; set a smaller batch_size"
    )


def _too_small(entry: Entry, best: float, seconds: float) -> str:
    """Return the line where beginning a batch costs more than its samples. best: seconds of all in a batch for each worker."""
    if best > seconds / 2 or seconds - best < _WORTH_SAYING:
        return ""
    return (
        f"batch_size: {entry.batch_size} takes about {seconds:.0f} s, and larger batches as little as {best:.0f} s; set a "
        f"larger batch_size"
    )


def attack_seconds(rows: Sequence[Estimate]) -> float:
    """Return the seconds of all attacks among the entries."""
    return sum(row.seconds for row in rows if row.is_attack)


def checks_cost(params: Params, classifier: Classifier, assessed: Dataset, rows: Sequence[Estimate]) -> Cost | None:
    """Estimate what the sanity checks cost after entries of these costs; None where they make no passes, or as `cost_of_checks`."""
    certified = sum(row.samples for row in rows if row.name.startswith("verification."))
    return cost_of_checks(params.sanity, classifier, assessed, certified, attack_seconds=attack_seconds(rows))


def widest_interval(n: int) -> float:
    """Return the width of the 95 % Wilson interval of a rate of one half over n samples; in [0, 1]."""
    low, high = binomial_interval(n / 2, n)
    return high - low


def samples_for(width: float) -> int:
    """Return the fewest samples at which no 95 % Wilson interval of a rate is wider than `width`, in (0, 1)."""
    low, high = 1, math.ceil(4 / width**2) + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if widest_interval(middle) <= width else (middle + 1, high)
    return low


def plan(
    rows: Sequence[Estimate], available: int, seconds: float | None, width: float | None, surcharge: float = 0.0
) -> list[PlanAnswer]:
    """Propose samples for each entry that was measured.

    Without `seconds` every entry gets what `width` needs. Else the time is shared so that the sum of the variances of the
    rates is smallest: in proportion to 1 / sqrt(seconds of a sample), between 1 and what `width` needs.

    Args:
        rows: measured cost of each entry; those that were not measured are left out.
        available: samples of the data set.
        seconds: for all entries together; None for no limit.
        width: wanted width of the widest interval, in (0, 1); None for as narrow as the time allows.
        surcharge: what the witness of the sanity checks adds to each second of attacks.

    Returns:
        The proposals in the order of `rows`.

    Raises:
        UserError: one sample of each entry takes longer than `seconds`.

    Source: optimal allocation of Neyman 1934, doi:10.2307/2342192.
    """
    measured = [row for row in rows if not row.skipped]
    costs = {row.name: row.seconds / row.samples * (1 + surcharge * row.is_attack) for row in measured}
    most = min(available, samples_for(width)) if width else available
    counts = dict.fromkeys(costs, most)
    if seconds is not None:
        if sum(costs.values()) > seconds:
            raise UserError(
                f"--minutes {seconds / 60:g}: one sample of each entry takes about {sum(costs.values()) / 60:.1f} minutes; "
                f"remove an entry or allow more"
            )
        low, high = 0.0, (most + 1) * max(1.0, *(cost**0.5 for cost in costs.values()))
        for _ in range(60):  # bisection of the common factor of the shares
            factor = (low + high) / 2
            shares = {name: max(1, min(most, int(factor / max(cost, 1e-12) ** 0.5))) for name, cost in costs.items()}
            if sum(costs[name] * n for name, n in shares.items()) <= seconds:
                low, counts = factor, shares
            else:
                high = factor
    return [
        PlanAnswer(name=name, samples=n, width=widest_interval(n), seconds=costs[name] * n)
        for name, n in counts.items()
    ]
