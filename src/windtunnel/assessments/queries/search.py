"""Many images advance together: whoever is done leaves, the next one enters, and every query is counted.

An algorithm proposes `width` candidates per image and round and learns from their losses; this loop does the rest. An
image sees its own candidates, its own answers and its own random stream only, so its result is the same alone or in company.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, PerturbationBudget
from windtunnel.core.criterion import SOFTMAX, Criterion
from windtunnel.core.distances import distance, within

# Of the n images in flight, all with first axis n: `index` int64, index into the task; `image` float32 (n, C, H, W), where
# the search stands; `logits` float32 (n, K) and `loss` float32 of it; `queries` and `step` int64; `seed` int64, of its
# stream; and what the algorithm adds.
State: TypeAlias = dict[str, Tensor]
NONE = -1
# Kernels for fewer samples (a matrix times a vector) add up in another order: measured with torch 2.13 on CPU, a sample's
# logits are equal bit for bit in batches of any size from 8 on, and differ from those in batches of 5 and less.
MIN_BATCH = 8


class Oracle:
    """The model as a black box: images in, logits out, `batch_size` at a time; nothing else of it is used.

    A smaller batch than MIN_BATCH is filled up with copies whose answers are thrown away, so that an image's answer does
    not depend on what is asked beside it. A Python `predict` is asked exactly what is counted: its calls may cost money.
    """

    def __init__(self, classifier: Classifier, batch_size: int) -> None:
        self._module, self._device, self._batch_size = classifier.module, classifier.device, batch_size
        self._least = 1 if classifier.capabilities == {Capability.FORWARD} else MIN_BATCH

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Logits float32 (m, K) on the CPU of images (m, C, H, W)."""
        return torch.cat([self._batch(part) for part in images.split(self._batch_size)])

    def _batch(self, images: Tensor) -> Tensor:
        n = len(images)
        if n < self._least:
            images = torch.cat([images, images[-1:].expand(self._least - n, *images.shape[1:])])
        answer: Tensor = self._module(images.to(self._device))[:n].float().cpu()
        return answer


class Goal:
    """The adversary's objective for n images, evaluated from logits.

    labels: int64 (n,). aims: int64 (n,), the wanted classes, or None for any but the label.
    """

    def __init__(self, labels: Tensor, aims: Tensor | None, criterion: Criterion = SOFTMAX) -> None:
        self.targeted, self._labels, self._criterion = aims is not None, labels, criterion
        self._sought = labels if aims is None else aims

    def loss(self, logits: Tensor, indices: Tensor) -> Tensor:
        """Smaller is better: p(label), or -p(aim); float32 (m, k) of logits (m, k, K) of the images `indices` (m,).

        Probabilities in float32, as an interface gives them: what they cannot tell apart, no adversary behind one can.
        """
        if self._criterion.k > 1:
            each = self._labels[indices].repeat_interleave(logits.shape[1])
            logits = self._criterion.without_best_others(logits.flatten(0, 1), each).view_as(logits)
        sought = self._sought[indices].view(-1, 1, 1).expand(-1, logits.shape[1], 1)
        probability = logits.softmax(2).gather(2, sought)[..., 0]
        return -probability if self.targeted else probability

    def reached(self, logits: Tensor, indices: Tensor) -> Tensor:
        """Return bool (m,): the prediction meets the adversary's goal; logits (m, K)."""
        predictions = self._criterion.predict(logits, self._labels[indices])
        return (predictions == self._sought[indices]) if self.targeted else (predictions != self._sought[indices])


class SearchAlgorithm(Protocol):
    """One algorithm of the query-counted kind.

    width: candidates per image and round; steps: rounds after which an image is given up.
    """

    width: int
    steps: int

    def start(self, state: State) -> State:
        """Return the initial state that the algorithm keeps per image, all with first axis n."""
        ...

    def propose(self, state: State) -> Tensor:
        """Candidates, float32 (n, width, C, H, W) in [0, 1]."""
        ...

    def learn(self, state: State, losses: Tensor) -> Tensor:
        """Record the losses (n, width) of the proposals, and advance `step`.

        Returns which candidate the search moves to, int64 (n,), NONE for staying.
        """
        ...


@dataclass(frozen=True, slots=True)
class QueryTask:
    """N images to attack.

    images: float32 (N, C, H, W); logits: float32 (N, K), the answers to the first query of each; seeds: int64 (N,).
    budget: a success counts within its epsilon, at any distance where that is None. max_queries: per image, or None.
    """

    images: Tensor
    logits: Tensor
    seeds: Tensor
    goal: Goal
    budget: PerturbationBudget
    max_queries: int | None = None


def search_images(
    search: SearchAlgorithm,
    oracle: Oracle,
    task: QueryTask,
    indices: Tensor,
    capacity: int,
    finished: Callable[[State], None],
) -> None:
    """Attack the images at `indices` (int64), at most `capacity` at a time; `finished` gets each when it is done.

    What it gets beside the state: `succeeded` bool (n,). The check of the clean image is the first query of each.
    """
    waiting = indices[capacity:]
    state = _enter(search, task, indices[:capacity])
    while len(state["index"]):
        succeeded = _round(search, oracle, task, state)
        done = succeeded | (state["step"] >= search.steps)
        if task.max_queries is not None:
            done |= state["queries"] + search.width > task.max_queries
        if done.any():
            finished({**{key: value[done] for key, value in state.items()}, "succeeded": succeeded[done]})
            places = done.nonzero().flatten()
            entering, waiting = waiting[: len(places)], waiting[len(places) :]
            if len(entering):
                next_images, places = places[: len(entering)], places[len(entering) :]
                for key, value in _enter(search, task, entering).items():
                    state[key].index_copy_(0, next_images, value)
            if len(places):
                is_active = torch.ones_like(done).index_fill_(0, places, False)
                state = {key: value[is_active] for key, value in state.items()}


def _enter(search: SearchAlgorithm, task: QueryTask, indices: Tensor) -> State:
    zeros = torch.zeros_like(indices)
    state = {
        "index": indices,
        "image": task.images[indices],
        "logits": task.logits[indices],
        "loss": task.goal.loss(task.logits[indices][:, None], indices)[:, 0],
        "queries": zeros + 1,
        "step": zeros,
        "seed": task.seeds[indices],
    }
    return {**state, **search.start(state)}


def _round(search: SearchAlgorithm, oracle: Oracle, task: QueryTask, state: State) -> Tensor:
    """One round of every image in flight, which changes `state`; returns who reached the goal, (n,) bool."""
    candidates = search.propose(state).flatten(0, 1)
    logits = oracle.logits(candidates)
    losses = task.goal.loss(logits.view(-1, search.width, logits.shape[1]), state["index"])
    state["queries"] += search.width
    chosen = search.learn(state, losses)
    moved = (chosen != NONE).nonzero().flatten()
    best = moved * search.width + chosen[moved]
    for key, values in (("image", candidates), ("logits", logits), ("loss", losses.flatten())):
        state[key].index_copy_(0, moved, values.index_select(0, best))
    reached = (chosen != NONE) & task.goal.reached(state["logits"], state["index"])
    if task.budget.epsilon is not None and reached.any():
        indices = reached.nonzero().flatten()
        distances = distance(task.budget.norm, state["image"][indices], task.images[state["index"][indices]])
        reached[indices] = within(distances, task.budget.epsilon)
    return reached


Bits = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def stream_seeds(run_seed: int, name: str, ids: Sequence[str]) -> Tensor:
    """Return a 64-bit seed per sample, int64 (n,), from (run seed, assessment name, sample id) and nothing else."""
    digests = [hashlib.sha256("\x1f".join((str(run_seed), name, sample)).encode()).digest()[:8] for sample in ids]
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").copy())


def uniforms(seeds: Tensor, start: Tensor, count: int) -> Tensor:
    """Draws `start` to `start + count` of each stream, float64 (n, count) in [0, 1); seeds, start: int64 (n,)."""
    first, seed = (tensor.numpy().view(np.uint64)[:, None] for tensor in (start, seeds))
    counter: Bits = np.arange(1, count + 1, dtype=np.uint64) + first
    bits: Bits = counter * _GOLDEN + seed
    for shift_bits, factor in _MIX:
        bits = (bits ^ (bits >> shift_bits)) * factor
    bits = bits ^ (bits >> np.uint64(31))
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def below(draws: Tensor, n: Tensor | int) -> Tensor:
    """Uniform integers in [0, n) from uniform draws; int64, shaped as `draws`."""
    return (draws * n).long()


def pixel_values(draws: Tensor, levels: int | None) -> Tensor:
    """Uniform pixel values in [0, 1], float32: any, or one of `levels` equally spaced ones (256: what 8 bits hold)."""
    return (draws if levels is None else below(draws, levels).double() / (levels - 1)).float()
