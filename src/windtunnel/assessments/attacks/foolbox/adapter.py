"""foolbox 3.3.4: budget and criterion are arguments of the call, not of the constructor."""

from collections.abc import Callable

import foolbox
import torch
from foolbox.attacks import DatasetAttack, LinearSearchBlendedUniformNoiseAttack, SaltAndPepperNoiseAttack
from foolbox.criteria import Criterion, Misclassification, TargetedMisclassification
from torch import Tensor, nn

from windtunnel.assessments.attacks.adapters import Request
from windtunnel.assessments.attacks.calls import LibraryCall
from windtunnel.assessments.attacks.rows import AT_CALL, Invoker
from windtunnel.assessments.attacks.settings import library_class, norm_argument
from windtunnel.core.errors import UserError


def perturb(request: Request, model: nn.Module) -> Tensor:
    """Return the library's perturbed inputs, float32 (B, C, H, W).

    Minimum-norm attacks run without a bound: what their distances are worth is evaluated by the caller.
    """
    call = call_of(request)
    if request.invoke:
        return request.invoke(call, model)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=request.inputs.device)
    return _INVOKERS[request.row.invoker](request, wrapped, call.attack(**call.built))


def call_of(request: Request) -> LibraryCall:
    """Return the library call: epsilon and criterion go into the call, the rest into the constructor."""
    row = request.row
    built = {**row.defaults, **_norm_argument(request), **request.arguments}
    return LibraryCall(library_class(row), built, request.inputs, request.labels, request.aims, _options(request))


def _options(request: Request) -> dict[str, object]:
    """Return the arguments of the attack's call beside batch and criterion."""
    epsilon = request.budget.epsilon if request.row.epsilon == AT_CALL else None
    return {} if request.row.invoker is Invoker.UNBOUNDED else {"epsilons": epsilon}


def _norm_argument(request: Request) -> dict[str, object]:
    """Foolbox takes a norm as an object of its own where it calls it a distance."""
    if request.row.norm_key == "distance":
        return {"distance": getattr(foolbox.distances, request.budget.norm.value.lower())}
    return norm_argument(request.row, request.budget.norm)


def _criterion(labels: Tensor, aims: Tensor | None) -> Criterion:
    return Misclassification(labels) if aims is None else TargetedMisclassification(aims)


def _call(request: Request, model: foolbox.Model, attack: foolbox.Attack) -> Tensor:
    criterion = _criterion(request.labels, request.aims)
    clipped: Tensor = attack(model, request.inputs, criterion, **_options(request))[1]
    return clipped


def _from_pool(request: Request, model: foolbox.Model, attack: DatasetAttack) -> Tensor:
    """DatasetAttack tries only as many of its pool as the batch has samples: we feed it a draw from the whole pool."""
    inputs, _ = request.pool
    # The attack never tries entry i for sample i, so one entry more than the batch would be of no use.
    chosen = torch.randperm(len(inputs))[: max(len(request.inputs), 2)]
    for part in inputs[chosen].split(256):
        attack.feed(model, part.to(request.inputs.device))
    return _call(request, model, attack)


def _from_start(request: Request, model: foolbox.Model, attack: foolbox.Attack) -> Tensor:
    """Find misclassified starting points first and run only on the samples that have one; the others stay clean.

    The library gives up on the whole batch where one sample has none.
    """
    criterion = _criterion(request.labels, request.aims)
    noise: foolbox.attacks.base.MinimizationAttack = (
        SaltAndPepperNoiseAttack()
        if request.row.algorithm.name == "PointwiseAttack" and request.aims is None
        else LinearSearchBlendedUniformNoiseAttack(distance=foolbox.distances.l2, steps=50)
    )
    start: Tensor = noise.run(model, request.inputs, criterion)
    start, usable = _with_pool(request, model, start)
    if not usable.any():
        return request.inputs
    perturbed = request.inputs.clone()
    aims = None if request.aims is None else request.aims[usable]
    try:
        raw, *_ = attack(
            model,
            request.inputs[usable],
            _criterion(request.labels[usable], aims),
            epsilons=None,
            starting_points=start[usable],
        )
    except ValueError as error:
        if "threshold" not in str(error):
            raise
        raise UserError(
            f"{request.row.algorithm.name}: the model does not binarise its input at this threshold: nothing to "
            f"refine; set params.threshold to the model's own, or use PointwiseAttack"
        ) from error
    perturbed[usable] = raw
    return perturbed


def _with_pool(request: Request, model: foolbox.Model, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return (starting points, bool of those that are adversarial), from noise, else from the pool of samples."""
    with torch.no_grad():
        predictions = model(start).argmax(1)
        usable = predictions != request.labels if request.aims is None else predictions == request.aims
        if usable.all():
            return start, usable
        inputs, _ = request.pool
        device = request.inputs.device
        pool_predictions = torch.cat([model(part.to(device)).argmax(1) for part in inputs.split(256)]).cpu()
    start = start.clone()
    for i in (~usable).nonzero().flatten().tolist():
        label, aim = int(request.labels[i]), None if request.aims is None else int(request.aims[i])
        candidates = (pool_predictions != label if aim is None else pool_predictions == aim).nonzero().flatten()
        if len(candidates):
            distances = (inputs[candidates] - request.inputs[i].cpu()).flatten(1).norm(dim=1)
            start[i] = inputs[candidates[distances.argmin()]].to(device)
            usable[i] = True
    return start, usable


_INVOKERS: dict[Invoker, Callable[[Request, foolbox.Model, foolbox.Attack], Tensor]] = {
    Invoker.PLAIN: _call,
    Invoker.UNBOUNDED: _call,
    Invoker.POOL: _from_pool,
    Invoker.STARTING_POINTS: _from_start,
}
