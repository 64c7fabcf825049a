"""The state of each sample at one budget: what the evidence of all assessments together says of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only print the names do not wait for torch
    from torch import Tensor


class SampleState(StrEnum):
    """State of a sample at a budget, the first of these that applies; `code` is its position and never changes."""

    MISCLASSIFIED = "misclassified"  # wrong on the clean input
    BROKEN = "broken"  # an adversarial example inside the budget is known
    CERTIFIED = "certified"  # verified for the model under assessment at this budget or a larger one
    SURVIVED = "survived"  # in the draw of an attack at this budget, and no example is known
    NOT_ATTACKED = "not_attacked"  # in no such draw: nothing is known of it

    @property
    def code(self) -> int:
        """The integer that stands for the state in robustness_data.pt."""
        return list(SampleState).index(self)

    @property
    def words(self) -> str:
        """The name as prose has it, for example `not attacked`."""
        return self.value.replace("_", " ")


STATE_CODES: dict[str, int] = {state.value: state.code for state in SampleState}


def sample_states(misclassified: Tensor, broken: Tensor, certified: Tensor, drawn: Tensor) -> Tensor:
    """Return the state of each sample as a code.

    Args:
        misclassified: bool (N,), wrong on the clean input.
        broken: bool (N,), an adversarial example inside the budget is known.
        certified: bool (N,), verified at this budget.
        drawn: bool (N,), in the draw of an attack at this budget.

    Returns:
        int64 (N,), `SampleState.code` of the first state that applies.

    """
    import torch

    states = torch.full(misclassified.shape, SampleState.NOT_ATTACKED.code)
    masks = (drawn, certified, broken, misclassified)  # the last assignment wins
    order = (SampleState.SURVIVED, SampleState.CERTIFIED, SampleState.BROKEN, SampleState.MISCLASSIFIED)
    for mask, state in zip(masks, order, strict=True):
        states[mask] = state.code
    return states


def state_counts(states: Tensor) -> dict[str, int]:
    """Return how many samples are in each state, in the order of the states; states: int64 (N,)."""
    return {state.value: int((states == state.code).sum()) for state in SampleState}
