"""The states partition the samples, in a fixed order with fixed codes."""

import itertools

import torch

from windtunnel.core.sample_states import STATE_CODES, SampleState, sample_states, state_counts


def test_the_codes_never_change():
    assert STATE_CODES == {"misclassified": 0, "broken": 1, "certified": 2, "survived": 3, "not_attacked": 4}


def test_a_sample_is_in_the_first_state_that_applies():
    masks = torch.tensor([*itertools.product((False, True), repeat=4)]).T
    states = sample_states(*masks).tolist()
    for (misclassified, broken, certified, drawn), state in zip(masks.T.tolist(), states, strict=True):
        if misclassified:
            expected = SampleState.MISCLASSIFIED
        elif broken:
            expected = SampleState.BROKEN
        elif certified:
            expected = SampleState.CERTIFIED
        else:
            expected = SampleState.SURVIVED if drawn else SampleState.NOT_ATTACKED
        assert state == expected.code


def test_the_counts_add_up():
    states = torch.tensor([0, 1, 1, 4])
    assert state_counts(states) == {"misclassified": 1, "broken": 2, "certified": 0, "survived": 0, "not_attacked": 1}
