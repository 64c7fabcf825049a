"""Losses that PGD can maximise in place of cross-entropy, as invokers: by name, or of a function of the caller's."""

from collections.abc import Callable
from typing import TypeAlias

import eagerpy
import foolbox
import torchattacks
from foolbox.attacks.gradient_descent_base import BaseGradientDescent
from foolbox.criteria import Misclassification, TargetedMisclassification
from torch import Tensor, nn

from windtunnel.assessments.attacks.calls import LibraryCall
from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.attacks.settings import library_class
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.errors import UserError

# From logits (B, K) and labels int64 (B,) to a loss a sample, (B,), or of all of them, ().
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def takes_loss(row: AttackRow) -> bool:
    """Return True if the attack can maximise another loss: PGD of torchattacks, and the gradient descents of foolbox."""
    attack = library_class(row)
    return attack is torchattacks.PGD or (isinstance(attack, type) and issubclass(attack, BaseGradientDescent))


def maximised(loss: Loss, call: LibraryCall, model: nn.Module) -> Tensor:
    """Return the perturbed inputs of a library's attack that maximises `loss`, float32 (B, C, H, W)."""

    def summed(logits: Tensor, labels: Tensor) -> Tensor:
        value = loss(logits, labels)
        if not isinstance(value, Tensor) or value.shape not in (logits.shape[:1], ()):
            raise UserError(f"loss: returned {getattr(value, 'shape', type(value).__name__)}, not one number a sample")
        return value.sum()

    if not issubclass(call.attack, BaseGradientDescent):  # type: ignore[arg-type]  # takes_loss holds
        attack = call.attack(model, **call.built)
        attack.loss = summed  # type: ignore[attr-defined]
        attack.set_device(call.inputs.device)  # type: ignore[attr-defined]
        if call.targets is not None:
            attack.set_mode_targeted_by_label(quiet=True)  # type: ignore[attr-defined]
        return attack(call.inputs, call.labels if call.targets is None else call.targets)  # type: ignore

    class WithLoss(call.attack):  # type: ignore[name-defined,misc]
        def get_loss_fn(self, model: foolbox.Model, labels: eagerpy.Tensor) -> Callable[[object], object]:
            return lambda x: eagerpy.astensor(summed(model(x).raw, labels.raw))

    aims = call.targets
    criterion = Misclassification(call.labels) if aims is None else TargetedMisclassification(aims)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=call.inputs.device)
    perturbed: Tensor = WithLoss(**call.built)(wrapped, call.inputs, criterion, **call.options)[1]
    return perturbed


def margin(call: LibraryCall, model: nn.Module) -> Tensor:
    """Maximise the best other logit minus the label's logit (Carlini and Wagner 2017, arXiv 1608.04644)."""
    return maximised(SOFTMAX.margin_loss, call, model)


def dlr(call: LibraryCall, model: nn.Module) -> Tensor:
    """Maximise the difference of logits ratio, which does not change with their scale (Croce and Hein 2020, arXiv 2003.01690)."""

    def ratio(logits: Tensor, labels: Tensor) -> Tensor:
        if logits.shape[1] < 3:
            raise UserError("loss: dlr needs three classes")
        first, _, third = logits.topk(3).values.T
        value: Tensor = SOFTMAX.margin_loss(logits, labels) / (first - third + 1e-12)
        return value

    return maximised(ratio, call, model)


def ce(call: LibraryCall, model: nn.Module) -> Tensor:
    """Maximise the cross-entropy, as the attacks do by themselves."""
    return maximised(SOFTMAX.loss, call, model)


LOSSES = ("ce", "dlr", "margin")
