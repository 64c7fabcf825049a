"""The pipeline's assessments as functions: for a notebook or a test, without DVC and MLflow. Same code, same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.boundary.data.load import convert
from windtunnel.boundary.data.sources import Raw
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.load import fit, pick_device
from windtunnel.boundary.models.loaders import FUNCTION, TORCH, Loaded
from windtunnel.core.artifacts import Artifacts, read_artifacts
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.layout import Layout
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.validate import validate
from windtunnel.operations.direct.pipeline import GIVEN, assess_subject
from windtunnel.operations.direct.result import Result
from windtunnel.operations.direct.words import Given, budget_block, entries_of, entry_of, epsilon_of
from windtunnel.params.data import Data

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
    sanity: str | None = "standard",
    class_names: Sequence[str] | None = None,
    train: tuple[Array, Array] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Result:
    """Assess `model` on the samples `x` with the labels `y`, as `dvc repro` would.

        result = windtunnel.assess(model, x, y, budget="Linf 8/255", attacks=["pgd", "standard"], verify="cascade")

    model: a torch module from float32 (n, C, H, W) in [0, 1] to logits (n, K), normalisation inside; it is copied, and never
    changed. Or a function from such an array to probabilities (n, K): black-box attacks alone.
    x: images (n, C, H, W) or (n, H, W) in [0, 1] or uint8, or tabular (n, F). y: integers or names, (n,); without it the
    model's own predictions are the reference, and a caveat says so. budget: a norm and an epsilon, or the block of
    params.yaml. attacks, queries, sweeps, verify, corrupt: an algorithm's name, several of them, or entries by name as in
    params.yaml; among attacks also a function of your own (docs/attacks.md). sanity: the profile of the checks (stored,
    standard, full), None for none. train: the training split, for checks of leakage. seed: every unit of work
    derives its own from it.

    Raises UserError, in one line and before anything is computed, for what cannot be run.
    """
    allowed = budget_block(budget)
    given = {"attacks": attacks, "queries": queries, "sweeps": sweeps, "verification": verify, "corruptions": corrupt}
    params = validate(
        {
            "seed": seed,
            "device": device,
            "data": {"source": "function", "function": GIVEN, "class_names": _class_names(model, x, y, class_names)},
            "model": {"source": "function", "function": GIVEN},
            "budget": allowed,
            "sanity": {"profile": sanity or "stored"},
            **{family: entries_of(family, words, epsilon_of(allowed)) for family, words in given.items()},
        },
        "windtunnel.assess",
    )
    dataset, split = _datasets(params.data, seed, x, y, train)
    subject = subject_of(_classifier(model, params.device, dataset), dataset, seed)
    return assess_subject(params, subject, split, checked=sanity is not None)


def attack(
    model: nn.Module | Callable[[np.ndarray], object],
    x: Array,
    y: Array | None = None,
    algorithm: str | Callable[..., object] = "standard",
    *,
    budget: str | Mapping[str, object],
    **entry: object,
) -> Artifacts:
    """One attack, with further keys of its entry as keywords (`params={"steps": 40}`, `restarts=5`); see `assess`."""
    return _one("attacks", algorithm, entry, model, x, y, budget)


def verify(
    model: nn.Module,
    x: Array,
    y: Array | None = None,
    algorithm: str = "cascade",
    *,
    budget: str | Mapping[str, object],
    **entry: object,
) -> Artifacts:
    """One verification, with further keys of its entry as keywords (`timeout=10`); see `assess`."""
    return _one("verification", algorithm, entry, model, x, y, budget)


def corrupt(
    model: nn.Module | Callable[[np.ndarray], object],
    x: Array,
    y: Array | None = None,
    algorithm: str = "common",
    **entry: object,
) -> Artifacts:
    """One corruption, or a suite of them, with further keys of its entry as keywords (`severities=[1, 3, 5]`); see `assess`."""
    # Corruptions have severities; the budget is only there because params.yaml has one.
    return _one("corruptions", algorithm, entry, model, x, y, "Linf 1")


def _one(
    family: str,
    algorithm: str | Callable[..., object],
    more: Mapping[str, object],
    model: nn.Module | Callable[[np.ndarray], object],
    x: Array,
    y: Array | None,
    budget: str | Mapping[str, object],
) -> Artifacts:
    name, entry = entry_of(family, algorithm, epsilon_of(budget_block(budget)))
    words = {"attacks": "attacks", "verification": "verify", "corruptions": "corrupt"}
    given: dict[str, Any] = {"attacks": None, words[family]: {name: {**entry, **more}}}
    return assess(model, x, y, budget=budget, sanity=None, **given)[name]


def _datasets(
    data: Data,
    seed: int,
    x: Array,
    y: Array | None,
    train: tuple[Array, Array] | None,
) -> tuple[Dataset, Dataset | None]:
    parts = [_raw(x, y, "x"), None if train is None else _raw(*train, "train")]
    assessed, split = parts
    assert assessed is not None
    return convert(data, seed, assessed, split)


def _class_names(
    model: nn.Module | Callable[[np.ndarray], object], x: Array, y: Array | None, given: Sequence[str] | None
) -> list[str] | int | None:
    """The names of the classes, or how many a torch module has: a few samples need not be of all of them."""
    if given is not None:
        return list(given)
    if not isinstance(model, nn.Module) or (y is not None and _array(y, "y").dtype.kind not in "iu"):
        return None
    sample = torch.as_tensor(_array(x, "x")[:1])
    sample = sample.float() / 255 if sample.dtype == torch.uint8 else sample.float()
    try:
        with torch.no_grad():
            return int(copy.deepcopy(model).cpu().eval()(sample[:, None] if sample.ndim == 3 else sample).shape[1])
    except Exception:  # a model that does not take the samples is refused, with the reason, where it is tried on them
        return None


def _raw(x: Array, y: Array | None, what: str) -> Raw:
    inputs, labels = _array(x, what), None if y is None else _array(y, "y")
    if not inputs.ndim or not len(inputs):
        raise UserError(f"windtunnel.assess: {what} holds no samples")
    if labels is not None and labels.shape != inputs.shape[:1]:
        raise UserError(f"windtunnel.assess: {len(inputs)} samples in {what}, and labels of shape {labels.shape}")
    ids = [f"{i:05d}" for i in range(len(inputs))]
    return Raw(inputs, labels, ids, (0.0, 255.0) if inputs.dtype == np.uint8 else (0.0, 1.0))


def _array(values: Array, what: str) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:  # lists of different lengths
        raise UserError(f"windtunnel.assess: {what} is no array ({error})") from error


def _classifier(model: nn.Module | Callable[[np.ndarray], object], device: str, dataset: Dataset) -> Classifier:
    where = pick_device(device)
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise UserError(f"windtunnel.assess: model is a {type(model).__name__}, not a torch module or a function")
        name = getattr(model, "__qualname__", type(model).__name__)
        return fit(Loaded(PredictFunction(model), FUNCTION, name, f"function {name}"), where, dataset)
    own = copy.deepcopy(model)  # the caller's module stays in its mode, on its device, with its gradients
    return fit(Loaded(own, TORCH, module_digest(own), type(model).__name__), where, dataset)


def read(directory: Path | str) -> Result:
    """A result that `save` wrote. Raises UserError where it is none."""
    place = Layout(Path(directory))
    read_artifacts(place.summary)
    return Result(None, place, None)
