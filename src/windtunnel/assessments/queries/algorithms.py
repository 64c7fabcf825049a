"""The searches that windtunnel implements: EvoBA, EpsGreedy and SimBA, each with its parameters."""

from math import ceil, prod
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from windtunnel.assessments.queries.search import NONE, State, below, pixel_values, uniforms
from windtunnel.core.errors import UserError
from windtunnel.core.references import resolve
from windtunnel.params.entry import Block, Number


class EvoBAParams(Block):
    """Parameters of EvoBA; RobustCheck calls pixels_per_step one_step_perturbation_pixel_count, and generations steps."""

    generation_size: PositiveInt = Field(30, description="offspring per generation, each one query")
    pixels_per_step: PositiveInt = Field(1, description="pixels an offspring changes, drawn with replacement")
    generations: PositiveInt = 100
    elitist: bool = Field(False, description="keep the parent where no offspring is as good; false: as in the paper")
    levels: int | None = Field(None, ge=2, description="pixel values to draw from: 256 for 8 bits; any where absent")


class EvoBA:
    """A (1, lambda) evolution strategy that sets random pixels to random values.

    Each generation mutates the parent; the best offspring is the next parent, even if it is worse.
    Source: Ilie, Popescu, Stefanescu 2021, arXiv 2107.05754; the rules are those of RobustCheck 1.1.0.
    """

    def __init__(self, params: EvoBAParams) -> None:
        self.width, self.steps, self._params = params.generation_size, params.generations, params

    def start(self, state: State) -> State:
        """Return no further state: the first parent is the clean image."""
        return {}

    def propose(self, state: State) -> Tensor:
        """Return the offspring: each the parent with some pixels, all channels of them, set to random values."""
        images, pixels = state["image"], self._params.pixels_per_step
        n, channels, height, width = images.shape
        per_round = self.width * pixels * (1 + channels)
        draws = uniforms(state["seed"], state["step"] * per_round, per_round).view(n, self.width, pixels, 1 + channels)
        places = below(draws[..., 0], height * width)
        values = pixel_values(draws[..., 1:], self._params.levels)
        offspring = images.flatten(2)[:, None].repeat(1, self.width, 1, 1)
        for pixel in range(pixels):  # one at a time: a pixel that is drawn twice keeps its later value
            pixel_index = places[:, :, pixel, None, None].expand(-1, -1, channels, 1)
            offspring.scatter_(3, pixel_index, values[:, :, pixel, :, None])
        return offspring.view(n, self.width, channels, height, width)

    def learn(self, state: State, losses: Tensor) -> Tensor:
        """Return the fittest offspring; with `elitist` only where it is as good as its parent."""
        state["step"] += 1
        best, chosen = losses.min(1)
        return torch.where(best <= state["loss"], chosen, NONE) if self._params.elitist else chosen


class EpsGreedyParams(Block):
    """Parameters of EpsGreedy."""

    patch_size: PositiveInt | tuple[PositiveInt, PositiveInt] = Field(
        4, description="side, or [height, width], of the rectangles of the grid of pixel groups"
    )
    groups: str | tuple[int, ...] | None = Field(
        None,
        description="instead of a grid: the group of each pixel, H * W numbers row by row, or module:function, which is "
        "given H and W and returns them",
    )
    epsilon: Number = Field(0.1, ge=0, le=1, description="share of the steps that explore a random group")
    steps: PositiveInt = Field(1000, description="each one query")
    levels: int | None = Field(None, ge=2, description="pixel values to draw from: 256 for 8 bits; any where absent")

    def pixel_groups(self, height: int, width: int, where: str) -> list[Tensor]:
        """Return the pixels of each group, as int64 indices into H * W. Raises UserError where `groups` does not fit the images."""
        if self.groups is None:
            patch = self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size, self.patch_size)
            down, across = (torch.arange(side) // step for side, step in zip((height, width), patch, strict=True))
            labels = (down[:, None] * (int(across[-1]) + 1) + across).flatten()
        else:
            groups: object = self.groups
            if isinstance(groups, str):
                groups = resolve(groups, f"{where}.params.groups")(height, width)
            try:
                labels = torch.from_numpy(np.asarray(groups).astype(np.int64, casting="same_kind")).flatten()
            except (TypeError, ValueError) as error:
                raise UserError(f"{where}.params.groups: not whole numbers ({error})") from error
            if len(labels) != height * width:
                raise UserError(
                    f"{where}.params.groups: {len(labels)} numbers for images of {height}x{width}; {height * width} are needed"
                )
        return [(labels == label).nonzero().flatten() for label in labels.unique().tolist()]


class EpsGreedy:
    """An epsilon-greedy bandit over groups of pixels: a step sets one random pixel of a chosen group, kept where the loss falls.

    The rules are those of RobustCheck 1.1.0, which came with EvoBA.
    The group is a random one with probability epsilon, else the one of the highest mean reward so far (random among equals).
    """

    width = 1

    def __init__(self, params: EpsGreedyParams, groups: list[Tensor]) -> None:
        self.steps, self._params = params.steps, params
        self._sizes = torch.tensor([len(members) for members in groups])
        self._members = torch.nn.utils.rnn.pad_sequence(groups, batch_first=True)

    def start(self, state: State) -> State:
        """Mean reward of each group and how often it was tried, and the group tried last."""
        n, groups = len(state["index"]), len(self._sizes)
        return {
            "rewards": torch.zeros(n, groups, dtype=torch.float64),
            "tried": torch.zeros(n, groups),
            "group": torch.zeros(n, dtype=torch.int64),
        }

    def propose(self, state: State) -> Tensor:
        """Return the image with one pixel, all channels of it, set to random values."""
        images = state["image"]
        n, channels, height, width = images.shape
        draws = uniforms(state["seed"], state["step"] * (3 + channels), 3 + channels)
        rewards = state["rewards"]
        best = rewards == rewards.amax(1, keepdim=True)
        # The k-th of the equally best, k uniform among them.
        nth = below(draws[:, 1], best.sum(1)) + 1
        greedy = (best.cumsum(1) >= nth[:, None]).int().argmax(1)
        explores = draws[:, 0] <= self._params.epsilon
        group = torch.where(explores, below(draws[:, 1], len(self._sizes)), greedy)
        state["group"] = group
        pixel = self._members[group, below(draws[:, 2], self._sizes[group])]
        candidates = images.flatten(2).clone()
        values = pixel_values(draws[:, 3:], self._params.levels)
        candidates.scatter_(2, pixel[:, None, None].expand(-1, channels, 1), values[..., None])
        return candidates.view(n, 1, channels, height, width)

    def learn(self, state: State, losses: Tensor) -> Tensor:
        """Update the mean reward of the group; keep the change where the reward is positive."""
        state["step"] += 1
        reward = (state["loss"] - losses[:, 0]).double()
        group = state["group"][:, None]
        tried = state["tried"].gather(1, group) + 1
        state["tried"].scatter_(1, group, tried)
        mean = state["rewards"].gather(1, group)
        state["rewards"].scatter_(1, group, mean + (reward[:, None] - mean) / tried)
        return torch.where(reward > 0, 0, NONE)


class SimBAParams(Block):
    """Parameters of SimBA. Its change is at most step_size * sqrt(steps) in L2."""

    basis: Literal["pixel", "dct"] = Field("pixel", description="single values, or cosine waves of low frequency")
    step_size: Number = Field(0.2, gt=0, le=1, description="length of a step, on [0, 1] pixels")
    frequencies: Number = Field(0.125, gt=0, le=1, description="dct: share of the lowest frequencies of each axis")
    steps: PositiveInt = Field(1000, description="directions tried, each one or two queries; at most all there are")


class SimBA:
    """Steps along random directions of an orthonormal basis, each tried once: forwards, and backwards if that does not lower the loss.

    Source: Guo, Gardner, You, Wilson, Weinberger 2019, arXiv 1905.07121.
    """

    width = 1

    def __init__(self, params: SimBAParams, shape: tuple[int, ...]) -> None:
        channels, height, width = shape
        self._shape, self._step_size, self._waves = (height, width), params.step_size, params.basis == "dct"
        self._block = (channels, height, width)
        if self._waves:
            self._block = (channels, ceil(height * params.frequencies), ceil(width * params.frequencies))
            self._down, self._across = cosines(height), cosines(width)
        self.steps = min(params.steps, prod(self._block))

    def start(self, state: State) -> State:
        """Return a random order of the directions for each image, and the sign to try next."""
        n = len(state["index"])
        keys = uniforms(state["seed"], torch.zeros(n, dtype=torch.int64), prod(self._block))
        return {"order": keys.argsort(dim=1, stable=True)[:, : self.steps].int(), "sign": torch.ones(n)}

    def propose(self, state: State) -> Tensor:
        """Return the image one step along its present direction, clipped to [0, 1]."""
        images = state["image"]
        n, channels, height, width = images.shape
        direction = state["order"].gather(1, state["step"][:, None])[:, 0].long()
        length = state["sign"] * self._step_size
        if not self._waves:
            candidates = images.flatten(1).clone()
            moved = candidates.gather(1, direction[:, None]) + length[:, None]
            return candidates.scatter_(1, direction[:, None], moved.clamp(0, 1)).view(n, 1, channels, height, width)
        _, low, narrow = self._block
        channel, down, across = direction // (low * narrow), direction // narrow % low, direction % narrow
        wave = self._down[down][:, :, None] * self._across[across][:, None, :]
        candidates = images.clone()
        candidates[torch.arange(n), channel] += length[:, None, None] * wave
        return candidates.clamp_(0, 1)[:, None]

    def learn(self, state: State, losses: Tensor) -> Tensor:
        """Keep the step where the loss falls; a direction is done with when it helped or was tried both ways."""
        better = losses[:, 0] < state["loss"]
        leave = better | (state["sign"] < 0)
        state["step"] += leave
        state["sign"] = torch.where(leave, 1.0, -1.0)
        return torch.where(better, 0, NONE)


def cosines(n: int) -> Tensor:
    """Return the orthonormal DCT-II basis of n points, float32 (n, n): row k is the wave of frequency k."""
    points, frequency = torch.arange(n, dtype=torch.float64) + 0.5, torch.arange(n, dtype=torch.float64)
    waves = torch.cos(torch.pi / n * frequency[:, None] * points) * (2 / n) ** 0.5
    waves[0] /= 2**0.5
    basis: Tensor = waves.float()
    return basis
