"""EpsGreedy: an epsilon-greedy bandit over groups of pixels.

The rules are those of RobustCheck 1.1.0, which came with EvoBA (Ilie, Popescu, Stefanescu 2021, arXiv 2107.05754).
"""

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from windtunnel.assessments.queries.search import NONE, State, below, pixel_values, uniforms
from windtunnel.core.errors import UserError
from windtunnel.core.references import resolve
from windtunnel.params.entry import Block
from windtunnel.params.numbers import Number


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


def pixel_groups(params: EpsGreedyParams, height: int, width: int, where: str) -> list[Tensor]:
    """Return the pixels of each group, as int64 indices into H * W. Raises UserError where `groups` does not fit the images."""
    if params.groups is None:
        patch = params.patch_size if isinstance(params.patch_size, tuple) else (params.patch_size, params.patch_size)
        down, across = (torch.arange(side) // step for side, step in zip((height, width), patch, strict=True))
        labels = (down[:, None] * (int(across[-1]) + 1) + across).flatten()
    else:
        groups: object = params.groups
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
    """A step sets one random pixel of a chosen group; the change is kept where the loss falls.

    The group is the one of the best mean reward so far (random among equals), or with probability epsilon a random one.
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
