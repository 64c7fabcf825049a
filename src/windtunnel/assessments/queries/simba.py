"""SimBA: a step along random directions of an orthonormal basis, forwards or else backwards, kept where it helps.

Source: Guo, Gardner, You, Wilson, Weinberger 2019, arXiv 1905.07121.
"""

from math import ceil, prod
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from windtunnel.assessments.queries.search import NONE, State, uniforms
from windtunnel.params.entry import Block
from windtunnel.params.numbers import Number


class SimBAParams(Block):
    """Parameters of SimBA. Its change is at most step_size * sqrt(steps) in L2."""

    basis: Literal["pixel", "dct"] = Field("pixel", description="single values, or cosine waves of low frequency")
    step_size: Number = Field(0.2, gt=0, le=1, description="length of a step, on [0, 1] pixels")
    frequencies: Number = Field(0.125, gt=0, le=1, description="dct: share of the lowest frequencies of each axis")
    steps: PositiveInt = Field(1000, description="directions tried, each one or two queries; at most all there are")


class SimBA:
    """Directions without replacement; each is first tried forwards, and where the loss does not fall, backwards."""

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
        """Return the image's own order of the directions, and the sign to try next."""
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
