"""The pipeline's assessments as functions: for a notebook or a test, without DVC and MLflow. Same code, same numbers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.table import ROWS
from windtunnel.boundary.arrays import array_of, plain_value
from windtunnel.boundary.callables import CallersFunctions, model_of
from windtunnel.boundary.data.load import convert
from windtunnel.boundary.data.sources import Raw
from windtunnel.boundary.limits import bounded
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.load import fit, pick_device
from windtunnel.boundary.models.loaders import Loaded
from windtunnel.boundary.models.trust import NOTHING
from windtunnel.core.errors import UserError, shown
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.validate import validate
from windtunnel.operations.api.pipeline import GIVEN, assess_subject
from windtunnel.operations.api.result import EntryResult, Result
from windtunnel.operations.api.shorthand import Given, budget_block, entries_of, entry_of
from windtunnel.params.entry import norm_of
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.layout import Layout
from windtunnel.runtime.supervised import ending_in_fork

# Images (n, C, H, W) or (n, H, W) in [0, 1], or uint8; tabular (n, F). Labels (n,).
Array = Tensor | np.ndarray | Sequence[Any]


def assess(
    model: nn.Module | Callable[[np.ndarray], object],
    x: Array,
    y: Array | None = None,
    *,
    budget: str | Mapping[str, object],
    attacks: Given = "standard",
    queries: Given = None,
    sweeps: Given = None,
    verify: Given = None,
    corrupt: Given = None,
    sanity: str | Mapping[str, object] | None = "standard",
    class_names: Sequence[str] | None = None,
    train: tuple[Array, Array] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Result:
    """Assess `model` on the samples `x` with the labels `y`, as `dvc repro` would.

        result = windtunnel.assess(model, x, y, budget="Linf 8/255", attacks=["pgd", "standard"], verify="cascade")

    Args:
        model: torch module from float32 (n, C, H, W) in [0, 1] to logits (n, K), normalisation inside; it is copied, and never
            changed. Or a function from such an array to probabilities (n, K), for black-box attacks alone.
        x: images (n, C, H, W) or (n, H, W) in [0, 1] or uint8, or tabular (n, F).
        y: integers or names, (n,). Without it the model's own predictions are the reference, and a caveat says so.
        budget: norm and epsilon such as "Linf 8/255", or the block of params.yaml.
        attacks: an algorithm's name, several of them, or entries by name as in params.yaml; also a function of your own
            (docs/how-to/own-attack.md).
        queries: query-counted attacks, given as `attacks` are.
        sweeps: attacks over a grid of epsilons.
        verify: verifiers.
        corrupt: corruption suites.
        sanity: profile of the checks (stored, standard, full), or the block of params.yaml; None for none.
        class_names: a name for each class.
        train: images and labels of the training split, for checks of leakage.
        seed: run seed; every unit of work derives its own from it.
        device: cpu, cuda, mps, or auto.

    Raises:
        UserError: For what cannot be run, in one line, before anything is computed.
    """
    entries = {"attacks": attacks, "queries": queries, "sweeps": sweeps, "verification": verify, "corruptions": corrupt}
    block = budget_block(budget)
    return _assess(model, x, y, block, entries, sanity, seed=seed, device=device, class_names=class_names, train=train)


def attack(
    model: nn.Module | Callable[[np.ndarray], object],
    x: Array,
    y: Array | None = None,
    algorithm: str | Callable[..., object] = "standard",
    *,
    budget: str | Mapping[str, object],
    seed: int = 0,
    **entry: object,
) -> EntryResult:
    """One attack, with further keys of its entry as keywords (`params={"steps": 40}`, `restarts=5`); see `assess`.

    loss: for PGD of torchattacks and the gradient descents of foolbox, `"margin"`, `"dlr"` or a function from logits (n, K) and
    labels (n,) to a loss a sample, (n,), in place of cross-entropy.
    """
    return _one("attacks", algorithm, entry, budget, seed, (model, x, y))


def autoattack(
    model: nn.Module, x: Array, y: Array, eps: float, norm: str = "Linf", seed: int = 0
) -> tuple[Tensor, float]:
    """Run the ensemble `standard` (APGD with two losses, FAB and Square on what is left, as AutoAttack does) in one line.

        x_adv, accuracy = windtunnel.autoattack(model, x, y, eps=8/255)

    Args:
        model: a torch module from float32 (n, C, H, W) in [0, 1] to logits (n, K).
        x: images (n, C, H, W) in [0, 1].
        y: labels, int64 (n,).
        eps: the largest distance, in the units of x.
        norm: Linf or L2.
        seed: run seed.

    Returns:
        The adversarial examples, float32 like x and on its device (the clean image where none is known), and the robust accuracy.

    Source: Croce and Hein 2020, arXiv 2003.01690.
    """
    allowed = ROWS["windtunnel", "standard"].allowed_norms
    if norm_of(norm) not in allowed:
        raise UserError(f"norm: {shown(norm)} is not {' or '.join(allowed)}, under which the ensemble runs")
    artifacts = attack(model, x, y, "standard", budget={"norm": norm, "epsilon": eps}, seed=seed)
    examples = artifacts.tensor("clean_inputs").clone()
    rows = artifacts.broken()["index"].tolist()
    if rows:
        examples[rows] = artifacts.tensor("perturbed_inputs")[rows]
    return examples.to(x.device if isinstance(x, Tensor) else "cpu"), artifacts.rates["adversarial_accuracy"].value


def verify(
    model: nn.Module,
    x: Array,
    y: Array | None = None,
    algorithm: str = "cascade",
    *,
    budget: str | Mapping[str, object],
    seed: int = 0,
    **entry: object,
) -> EntryResult:
    """One verification, with further keys of its entry as keywords (`timeout=10`); see `assess`."""
    return _one("verification", algorithm, entry, budget, seed, (model, x, y))


def corrupt(
    model: nn.Module | Callable[[np.ndarray], object],
    x: Array,
    y: Array | None = None,
    algorithm: str | Callable[..., object] = "common",
    *,
    seed: int = 0,
    **entry: object,
) -> EntryResult:
    """One corruption, a suite, or a function of yours, with further keys of its entry as keywords (`severities=[1, 3]`); see `assess`."""
    # Corruptions have severities; the budget is only there because params.yaml has one.
    return _one("corruptions", algorithm, entry, "Linf 1", seed, (model, x, y))


def _one(
    family: str,
    algorithm: object,
    more: Mapping[str, object],
    budget: object,
    seed: object,
    samples: tuple[object, object, object],
) -> EntryResult:
    block = budget_block(budget)
    with CallersFunctions() as functions:
        name, entry = entry_of(family, algorithm, block, functions, more)
        result = _assess(*samples, block, {family: {name: entry}}, None, seed=seed, is_alone=True)[name]
    if result.metadata.failure:
        raise UserError(f"{family}.{name}: {result.metadata.failure.reason}")
    return result


def _assess(
    model: object,
    x: object,
    y: object,
    budget: Mapping[str, object],
    shorthand: Mapping[str, Any],
    sanity: object,
    *,
    seed: object = 0,
    device: object = "auto",
    class_names: object = None,
    train: object = None,
    is_alone: bool = False,
) -> Result:
    """Assess a caller's model; see `assess`. `shorthand`: the entries by family.

    is_alone: True for one entry, whose failure the caller raises.
    """
    loaded = model_of(model)
    assessed, split = _raw(x, y, "x"), _split(train)
    with CallersFunctions() as functions:
        entries = {family: entries_of(family, items, budget, functions) for family, items in shorthand.items()}
        names = _class_names(loaded, assessed, class_names)
        profile = plain_value(sanity, "sanity") if isinstance(sanity, Mapping) else {"profile": sanity or "stored"}
        raw = {
            "seed": plain_value(seed, "seed"),
            "device": str(device) if isinstance(device, torch.device) else device,
            "data": {"source": "function", "function": GIVEN, "class_names": names},
            "model": {"source": "function", "function": GIVEN},
            "budget": budget,
            "sanity": profile,
            **entries,
        }
        params = validate(raw, "windtunnel.assess")
        try:
            dataset, train_split = convert(params.data, params.seed, assessed, split)
        except UserError as error:
            if split is None:
                raise
            convert(params.data, params.seed, assessed, None)  # raises what is wrong with x and y
            raise UserError(f"train: {error}") from error
        if train_split is not None and train_split.inputs.shape[1:] != dataset.inputs.shape[1:]:
            shapes = (tuple(part.inputs.shape[1:]) for part in (train_split, dataset))
            raise UserError("train: samples have shape {}, those of x {}".format(*shapes))
        subject = subject_of(fit(loaded, pick_device(params.device), dataset), dataset, params.seed)
        return assess_subject(params, subject, train_split, checked=sanity is not None, is_alone=is_alone)


def _class_names(loaded: Loaded, assessed: Raw, names: object) -> object:
    """Return the names of the classes, or how many a torch module has: a few samples need not be of all of them.

    Raises UserError for a module whose first forward pass ends its process, which is a fork of the caller's.
    """
    assert isinstance(assessed.inputs, np.ndarray)  # a caller gives no files
    sample = torch.from_numpy(np.array(assessed.inputs[:1], dtype=np.float32)) / assessed.value_range[1]
    module, is_function = loaded.module.cpu().eval(), isinstance(loaded.module, PredictFunction)

    @torch.no_grad()
    def logits_of_one() -> Any:
        return module(sample[:, None] if sample.ndim == 3 else sample)

    # Calls of a function may cost money, or share a connection with a fork.
    if not is_function and (ending := ending_in_fork(logits_of_one)):
        raise UserError(f"model: its forward pass ends the process {ending}")
    if names is not None:
        if isinstance(names, str | bytes | float):
            raise UserError(f"class_names: {shown(names)} is no list of names")
        is_number = isinstance(names, int | np.integer)
        return int(names) if is_number else array_of(names, "class_names", names=True).tolist()  # type: ignore[call-overload]
    if is_function or (assessed.labels is not None and assessed.labels.dtype.kind == "U"):
        return None
    try:
        with bounded("model", NOTHING.time_limit, "nothing"):
            logits = logits_of_one()
        shape = getattr(logits, "logits", logits).shape
        return int(shape[1]) if len(shape) == 2 else None
    except (UserError, AttributeError):  # refused, with the reason, where it is tried on all of the samples
        return None


def _raw(x: object, y: object, what: str) -> Raw:
    inputs, labels = array_of(x, what), None if y is None else array_of(y, "y", names=True)
    if not len(inputs):
        raise UserError(f"{what}: holds no samples")
    if labels is not None and labels.shape != inputs.shape[:1]:
        raise UserError(f"{len(inputs)} samples in {what}, and labels of shape {labels.shape}")
    ids = [f"{i:05d}" for i in range(len(inputs))]
    return Raw(inputs, labels, ids, (0.0, 255.0) if inputs.dtype == np.uint8 else (0.0, 1.0))


def _split(train: object) -> Raw | None:
    if train is None:
        return None
    if not isinstance(train, tuple | list) or len(train) != 2:
        raise UserError(f"train: {type(train).__name__} is no training split; a pair (x, y) is")
    return _raw(train[0], train[1], "train")


def read(directory: Path | str) -> Result:
    """Return a result that `save` wrote. Raises UserError where it is none."""
    layout = Layout(Path(directory))
    read_artifacts(layout.summary)
    return Result(None, layout, None)
