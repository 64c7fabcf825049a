"""`windtunnel batches`: which batch size suits each entry on this machine, measured once and then written into params.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.core.artifacts import tensor_in
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Randomness
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.executors import inside_a_unit
from windtunnel.operations.estimate import cannot_be_tried
from windtunnel.operations.params_file import rewrite
from windtunnel.operations.sizes import gigabytes
from windtunnel.operations.trial import Trial, tried
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params

_FASTER = 0.9  # of the time per sample: what saves less is noise
_FLAT = 2  # so many doublings in a row that save nothing end the search
_SHORT, _REPEATS = 0.3, 3  # a trial of fewer seconds is repeated, and the quickest counts


@dataclass(frozen=True, slots=True)
class Limits:
    """memory: bytes that a batch may take. seconds: the most that one trial should take."""

    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The batch size of one entry. before: what it has, `written` by the user or by default. after: what suits; None where it stays,
    and `why`. seconds: per sample at `after`. memory: bytes at `after`. tried: the largest that was tried.

    different, compared: of so many samples, how many came out otherwise at `tried` than at the size before. random: whether the
    algorithm draws for a whole batch, so that its results are those of a size.
    """

    name: str
    before: int
    written: bool
    why: str
    after: int | None = None
    seconds: float = 0.0
    memory: int = 0
    tried: int = 0
    different: int = 0
    compared: int = 0
    random: bool = False

    @property
    def is_another(self) -> bool:
        """Whether the entry gets another size than it has."""
        return self.after not in {None, self.before}


Try = Callable[[int, int], Trial]


def choices(
    params: Params,
    classifier: Classifier,
    assessed: Dataset,
    limits: Limits,
    *,
    only: Sequence[str] = (),
    force: bool = False,
) -> Iterator[Choice]:
    """What suits each entry, `only` those of these names where there are some. A size that the user wrote stays, unless `force`.

    In this process alone: where work is done decides neither what a batch takes, nor which size is the faster.
    """
    for family, name, entry in entries(params):
        if only and name not in only:
            continue
        where, written = f"{family}.{name}", "batch_size" in entry.model_fields_set
        stays = Choice(where, entry.batch_size, written, "", random=_draws(family, entry, where))
        why = cannot_be_tried(family, classifier) or entry.batch_size_unused
        if getattr(entry, "timeout", None) is not None:
            why = why or "its time is limited for each sample"
        if written and not force:
            why = "it is in params.yaml; --force measures it too"
        if why:
            yield replace(stays, why=why)
            continue
        n = min(entry.samples.n or len(assessed), len(assessed))
        try:
            with inside_a_unit():
                yield _climbed(stays, _trials(params, family, name, entry, classifier, assessed), n, limits)
        except UserError as error:
            yield replace(stays, why=str(error).splitlines()[0])


def write_sizes(path: Path, found: Sequence[Choice]) -> int:
    """Write the sizes into params.yaml, where each entry has its own from then on; of how many entries. Raises UserError as `rewrite`."""
    chosen = [one for one in found if one.after is not None]

    def change(content: dict[str, Any]) -> None:
        for one in chosen:
            family, _, name = one.name.partition(".")
            content[family][name]["batch_size"] = one.after

    if chosen:
        rewrite(path, change)
    return len(chosen)


def _draws(family: str, entry: Entry, where: str) -> bool:
    if not entry.draws_by_batch:
        return False
    return find_algorithm(entry.library, entry.algorithm, where, family).randomness is not Randomness.DETERMINISTIC


def _trials(params: Params, family: str, name: str, entry: Entry, classifier: Classifier, assessed: Dataset) -> Try:
    """(samples, batch size) -> what an entry takes for the first so many samples, which are repeated where there are fewer."""

    def once(samples: Dataset, size: int) -> Trial:
        sized = entry.model_copy(update={"batch_size": size})
        return tried(params, family, name, sized, classifier, samples)

    def attempt(n: int, size: int) -> Trial:
        found = assessed.subset(torch.arange(n) % len(assessed))
        samples = replace(found, ids=tuple(map(str, range(n))))
        first = once(samples, size)
        more = [once(samples, size) for _ in range(_REPEATS - 1)] if first.seconds < _SHORT else []
        return min([first, *more], key=lambda trial: trial.seconds)

    return attempt


def _climbed(stays: Choice, attempt: Try, n: int, limits: Limits) -> Choice:
    """Double the size while it fits and gets faster: both sizes on the same samples, one after the other.

    One that saves nothing is taken up to the size that the entry has, if it is no slower: fewer batches are fewer files, and what
    was computed stays.
    """
    attempt(1, 1)  # libraries are imported within the first
    last = attempt(1, 1)
    if last.taken > limits.memory:
        why = f"one sample takes {gigabytes(last.taken)}, more than {gigabytes(limits.memory)}"
        return replace(stays, why=why, tried=1)
    found = replace(stays, after=1, seconds=last.seconds, memory=last.taken, tried=1)
    size, flat, each = 1, 0, 0.0  # each: bytes that one more sample takes
    while size < n:
        target = 2 * size if flat < _FLAT else min(_power_of_two(stays.before), 2 ** (n - 1).bit_length())
        # Nothing is tried that would not fit: the system ends who takes too much.
        while target > size and last.taken + each * (target - size) > limits.memory:
            target //= 2
        if target <= size:
            return replace(found, why="larger ones are no faster" if flat >= _FLAT else _full(limits))
        if last.seconds * target / size > limits.seconds:
            return _out_of_time(stays, found, target, limits)
        before, after = attempt(target, size), attempt(target, target)
        if after.in_halves or after.taken > limits.memory:
            return replace(found, why=_full(limits))
        found = replace(found, tried=target, different=_different(before, after), compared=target)
        faster = after.seconds < _FASTER * before.seconds
        if faster or (target <= stays.before and _FASTER * after.seconds < before.seconds):
            found = replace(found, after=target, seconds=after.seconds / target, memory=after.taken)
        if flat == _FLAT and not faster:
            return replace(found, why="larger ones are no faster")
        flat = 0 if faster else flat + 1
        size, each, last = target, max(0.0, (after.taken - before.taken) / (target - size)), after
    return replace(
        found, why=f"all {n} samples fit in one batch" if found.after == size else "larger ones are no faster"
    )


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)


def _full(limits: Limits) -> str:
    return f"twice as many would take more than {gigabytes(limits.memory)}"


def _out_of_time(stays: Choice, found: Choice, target: int, limits: Limits) -> Choice:
    """What the entry has stays: nobody knows whether larger ones are faster, or fit."""
    why = f"{target} samples together would take more than {limits.seconds:g} s; --seconds gives more"
    return replace(stays, why=why, tried=found.tried, different=found.different, compared=found.compared)


def _different(before: Trial, after: Trial) -> int:
    """Samples whose result is another one: more than rounding parts them."""
    first, second = (tensor_in(trial.result.data, "perturbed_inputs").flatten(1) for trial in (before, after))
    return int((~torch.isclose(first, second, rtol=1e-3, atol=1e-4, equal_nan=True).all(1)).sum())
