"""Steps that a library of verification offers, each of which decides what it can of the samples that are undecided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.core.contracts import Capability
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.registry.plugins import Library, libraries

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
    from windtunnel.assessments.verification.canonical.subject import Canonical
    from windtunnel.assessments.verification.cascade.radius import RadiusBounds
    from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
    from windtunnel.core.classifier import Classifier
    from windtunnel.params.verification import VerificationEntry


@dataclass(frozen=True, slots=True)
class Trial:
    """One sample, on which a step shows before anything is computed whether it can run on the model.

    canonical: the sample with the canonical network. given: the user's own model. bounder: of the canonical network, with
    the trial's deadline. epsilon: of the region.
    """

    canonical: Canonical
    given: Classifier
    bounder: Bounder
    epsilon: float


@dataclass(frozen=True, slots=True)
class Step:
    """One way of deciding samples.

    decide: (step, ledger, task) -> None, enters what it finds out of the undecided samples. call: (step, task) -> what its
    library is called with, for `call_kwargs`. tolerance: by how much of the logits' unit a lead must exceed 0 before its
    word counts. attempt: (step, trial) -> None, raises IncompatibleError for a model it cannot run on; None for a step that can
    verify nothing, and draws from the seed. bounds: whether it bounds at any epsilon, so that a certified radius can be searched
    with it. cheap: whether it is tried on a few samples before a stronger one. load: imports what it would import at its first
    use, which no time budget is to pay for.
    radii: (step, known, ledger, task) -> bool (N,), searches certified radii where bounds alone do not, sample by sample: raises
    what is known to hold, and gives whose search was not finished.
    options: the keys of the entry that the step reads, beside `params`; `metadata.json` records these alone.
    """

    decide: Callable[[str, Ledger, VerificationTask], None]
    call: Callable[[str, VerificationTask], Mapping[str, object]]
    tolerance: float
    attempt: Callable[[str, Trial], None] | None = None
    bounds: bool = False
    cheap: bool = False
    radii: Callable[[str, RadiusBounds, Ledger, VerificationTask], Tensor] | None = None
    load: Callable[[], object] | None = None
    options: frozenset[str] = frozenset()

    @property
    def falsifies(self) -> bool:
        """True if the step can falsify but never verify."""
        return self.attempt is None


def library_of_step(name: str) -> Library:
    """Return the library that offers a step; its code is not imported. Raises UserError, with the nearest match, for none."""
    if name not in _known():
        raise UserError(_unknown("steps", name))
    return _known()[name]


def unknown_steps(where: str, entry: VerificationEntry) -> Iterator[str]:
    """Yield a line for each of an entry's steps that no library offers, with the nearest one that is offered."""
    yield from (_unknown(f"{where}.steps", step) for step in entry.steps if step not in _known())


def asks_exported_graph(name: str) -> bool:
    """Return whether a step works on the model's ONNX graph and not on the model itself: its library's algorithms need one.

    Of a step that no library offers, as of a plug-in that is not installed any more, nobody knows: then False.
    """
    library = _known().get(name)
    return library is not None and any(Capability.ONNX_GRAPH in row.algorithm.requires for row in library.rows())


def _known() -> dict[str, Library]:
    return {step: library for library in libraries("verification").values() for step in library.steps}


def _unknown(where: str, name: str) -> str:
    return unknown_word(where, name, _known(), what="a step of a verification")


def step_of(name: str) -> Step:
    """Return the step of this name. Imports the code of the library that offers it."""
    step: Step = library_of_step(name).steps[name]()
    return step
