"""The state of each sample at one budget: derived from all assessments at that budget."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, cast

from windtunnel.core.contracts import Verdict

if TYPE_CHECKING:  # commands that only print the names do not wait for torch
    from collections.abc import Mapping

    from torch import Tensor

STATES = "sample_states"  # key of robustness_data.pt of the summary


class SampleState(StrEnum):
    """State of a sample at a budget, the first of these that applies; `code` is its position and never changes."""

    MISCLASSIFIED = "misclassified"  # wrong on the clean input
    BROKEN = "broken"  # an adversarial example inside the budget is known
    CERTIFIED = "certified"  # verified for the model under assessment at this budget or a larger one
    SURVIVED = "survived"  # in the draw of an attack at this budget, and no example is known
    NOT_ATTACKED = "not_attacked"  # in no such draw: nothing is known of it

    @property
    def code(self) -> int:
        """Return the integer that encodes the state in robustness_data.pt."""
        return list(SampleState).index(self)

    @property
    def words(self) -> str:
        """The name as prose has it, for example `not attacked`."""
        return self.value.replace("_", " ")

    @property
    def meaning(self) -> str:
        """The state and what it means, for a legend."""
        return f"{self.words}: {_MEANINGS[self]}"


_MEANINGS = {
    SampleState.MISCLASSIFIED: "wrong as it is",
    SampleState.BROKEN: "an example is known",
    SampleState.CERTIFIED: "no attack can succeed",
    SampleState.SURVIVED: "attacked, none is known",
    SampleState.NOT_ATTACKED: "nothing is known",
}
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
    states[drawn] = SampleState.SURVIVED.code
    states[certified] = SampleState.CERTIFIED.code
    states[broken] = SampleState.BROKEN.code
    states[misclassified] = SampleState.MISCLASSIFIED.code  # the last assignment wins
    return states


def states_of(data: Mapping[str, object], clean_predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the states at the global budget from the tensors of a summary; int64 (N,).

    A summary of an older version has none: it counted every sample that is neither broken nor certified as attacked.
    """
    if STATES in data:
        return cast("Tensor", data[STATES])
    broken = cast("Tensor", data["verdicts"]) == Verdict.ATTACK_SUCCEEDED
    certified = cast("Tensor", data["certified_verdicts"]) == Verdict.VERIFIED
    return sample_states(clean_predictions != targets, broken, certified, broken | ~broken)


def state_counts(states: Tensor) -> dict[str, int]:
    """Return how many samples are in each state, in the order of the states; states: int64 (N,)."""
    return {state.value: int((states == state.code).sum()) for state in SampleState}
