"""EvoBA: a (1, lambda) evolution strategy that sets random pixels to random values.

Source: Ilie, Popescu, Stefanescu 2021, arXiv 2107.05754; the rules are those of RobustCheck 1.1.0.
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from windtunnel.assessments.queries.search import NONE, State, below, pixel_values, uniforms
from windtunnel.params.entry import Block


class EvoBAParams(Block):
    """Parameters of EvoBA; RobustCheck's names are one_step_perturbation_pixel_count and steps for the second and third."""

    generation_size: PositiveInt = Field(30, description="offspring per generation, each one query")
    pixels_per_step: PositiveInt = Field(1, description="pixels an offspring changes, drawn with replacement")
    generations: PositiveInt = 100
    elitist: bool = Field(False, description="keep the parent where no offspring is as good; false: as in the paper")
    levels: int | None = Field(None, ge=2, description="pixel values to draw from: 256 for 8 bits; any where absent")


class EvoBA:
    """Every generation, offspring of the parent; the best of them is the next parent, even where it is worse."""

    def __init__(self, params: EvoBAParams) -> None:
        self.width, self.steps, self._params = params.generation_size, params.generations, params

    def start(self, state: State) -> State:
        """Nothing: the parent is the image itself."""
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
        for pixel in range(pixels):  # one by one: of two changes of one pixel the later holds
            pixel_index = places[:, :, pixel, None, None].expand(-1, -1, channels, 1)
            offspring.scatter_(3, pixel_index, values[:, :, pixel, :, None])
        return offspring.view(n, self.width, channels, height, width)

    def learn(self, state: State, losses: Tensor) -> Tensor:
        """Return the fittest offspring; with `elitist` only where it is as good as its parent."""
        state["step"] += 1
        best, chosen = losses.min(1)
        return torch.where(best <= state["loss"], chosen, NONE) if self._params.elitist else chosen
