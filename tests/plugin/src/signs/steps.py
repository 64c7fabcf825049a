"""A step of a verifying cascade: a few corners of the ball are tried on what is undecided, before anything is bounded."""

import torch

from windtunnel.plugins import Lazy, Library, Step

TRIES = 5


def corners(step, ledger, task):
    """Break what a random corner breaks; the ledger asks the user's own model."""
    clean, stream = task.subject.dataset.inputs, torch.Generator().manual_seed(task.subject.seed)
    for _ in range(TRIES):
        left = ledger.undecided
        if not len(left):
            return
        signs = torch.randn(clean[left].shape, generator=stream).sign()
        ledger.falsify(left, (clean[left] + task.epsilon * signs).clamp(0, 1), step)


def call(step, task):
    """For call_kwargs."""
    return {"tries": TRIES, "epsilon": task.epsilon}


CORNERS = Step(corners, call, tolerance=0.0)
ROWS = ()  # no algorithm of its own: a step for the cascades of others
LIBRARY = Library(
    name="corners",
    family="verification",
    package="windtunnel-signs",
    rows=Lazy("signs.steps:ROWS"),
    steps={"corners": Lazy("signs.steps:CORNERS")},
)
