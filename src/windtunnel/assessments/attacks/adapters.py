"""The request that every adapter gets, and the model as it sees it: counted, and with as many channels as it can work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor, nn

from windtunnel.assessments.attacks.calls import Invoke, LibraryCall
from windtunnel.assessments.attacks.gradients import ModelWrapper
from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.attacks.settings import Settings
from windtunnel.core.contracts import PerturbationBudget
from windtunnel.core.criterion import Criterion, OneLabel
from windtunnel.core.subject import Subject
from windtunnel.registry.plugins import library_of


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to perturb, all tensors but `pool` on the model's device.

    inputs: float32 (B, C, H, W) in [0, 1]. labels: int64 (B,). aims: int64 (B,), the wanted classes; None untargeted.
    pool: all assessed inputs and their labels, on the CPU, for the attacks that draw on other samples. seed: this
    batch's own. invoke: the user's own way to call the attack, where there is one.
    """

    row: AttackRow
    arguments: Mapping[str, object]
    budget: PerturbationBudget
    inputs: Tensor
    labels: Tensor
    aims: Tensor | None
    pool: tuple[Tensor, Tensor]
    num_classes: int
    seed: int
    invoke: Invoke | None = None

    @classmethod
    def of(
        cls,
        row: AttackRow,
        settings: Settings,
        subject: Subject,
        aims: Tensor | None,
        indices: Tensor,
        seed: int,
        invoke: Invoke | None = None,
    ) -> Request:
        """Return the request for the samples of `subject` at `indices`; `aims` int64 (N,) are the target classes of all."""
        data, device = subject.dataset, subject.classifier.device
        return cls(
            row=row,
            arguments=settings.arguments,
            budget=settings.budget,
            inputs=data.inputs[indices].to(device).contiguous(),
            labels=data.targets[indices].to(device),
            aims=None if aims is None else aims[indices].to(device),
            pool=(data.inputs, data.targets),
            num_classes=subject.classifier.num_classes,
            seed=seed,
            invoke=invoke,
        )


# Returns the perturbed inputs, shaped as the request's; a failed sample may come back as it was.
Adapter: TypeAlias = Callable[[Request, nn.Module], Tensor]


class Passes:
    """Samples that went forward through a model and gradients that came back; copies of the model share it."""

    def __init__(self) -> None:
        self.forwards = 0
        self.backwards = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Passes:
        """Itself: an attack that trains copies of the model (LGV) is charged for them too."""
        return self


class CountedModel(ModelWrapper):
    """A model that counts the samples that go forward through it and the gradients that come back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.passes = Passes()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, float32 (N, K), whatever type the model answers in: libraries take no other."""
        logits: Tensor = self.model(inputs).float()
        self.passes.forwards += len(inputs)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.passes.backwards += len(gradient)


class GreyAsThree(ModelWrapper):
    """A one-channel model that takes three equal channels: for attacks whose kernels are built for colour.

    Equal channels get equal gradients, so the result is three times the same grey image.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the mean of the three channels."""
        logits: Tensor = self.model(inputs.mean(1, keepdim=True))
        return logits


def perturb(request: Request, model: nn.Module, adapter: Adapter) -> Tensor:
    """Run an adapter, on three equal channels where its attack needs them and the image has one."""
    presented = _as_seen(request)
    return adapter(request, model) if presented is request else adapter(presented, GreyAsThree(model))[:, :1]


def perturb_by_label(request: Request, model: nn.Module, adapter: Adapter, criterion: Criterion) -> Tensor:
    """Run an adapter so that it breaks what the criterion counts as correct.

    Attacks know only the argmax. Under a top-k head the samples of one label are attacked together, on a model without
    the k - 1 best other classes, whose argmax is the label exactly where the label is among the k largest logits.
    """
    if criterion.k == 1:
        return perturb(request, model, adapter)
    perturbed = request.inputs.clone()
    for label in request.labels.unique().tolist():
        members = (request.labels == label).nonzero().flatten()
        part = replace(
            request,
            inputs=request.inputs[members],
            labels=request.labels[members],
            aims=None if request.aims is None else request.aims[members],
            num_classes=criterion.competing_classes(request.num_classes),
        )
        perturbed[members] = perturb(part, OneLabel(model, criterion, label).eval(), adapter)
    return perturbed


def _as_seen(request: Request) -> Request:
    """Return the request itself, or a copy of it with three channels."""
    if not request.row.three_channels or request.inputs.shape[1] != 1:
        return request
    return replace(request, inputs=request.inputs.expand(-1, 3, -1, -1).contiguous())


def adapter_of(library: str) -> Adapter:
    """Return the adapter of a library. The libraries are slow to import, and a run needs one of them."""
    adapter = library_of(library, "attacks").adapter
    assert adapter is not None, f"{library} offers no attack of its own"  # an ensemble is run by its members' adapters
    return adapter()


def call_of(request: Request) -> LibraryCall:
    """Return the library call for `request` in the library's names; its parameters and epsilon if the adapter has no `call_of`."""
    library, presented = library_of(request.row.algorithm.library, "attacks"), _as_seen(request)
    if library.call is not None:
        call: LibraryCall = library.call()(presented)
        return call
    built = {**request.row.defaults, **request.arguments, "epsilon": request.budget.epsilon}
    attack = library.algorithm(request.row.algorithm.name)
    return LibraryCall(attack, built, presented.inputs, presented.labels, presented.aims, {})
