"""Classifiers of torchvision.models: architecture, weights or a checkpoint of one's own, and the weights' own transforms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from windtunnel.boundary.models import of_libraries
from windtunnel.boundary.models.loaders import Loaded
from windtunnel.boundary.models.record import MODEL_JSON, OfLibrary
from windtunnel.boundary.models.trust import Trust, trust_of
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.references import first_line
from windtunnel.params.model import Model
from windtunnel.records.metadata import fitting
from windtunnel.registry.plugins import View, distinct

# Two have heads that only training uses; torchvision gives them with its weights and does not need them for logits.
_AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}


class _TorchvisionFile(OfLibrary):
    name: str
    transform_input: bool | None = None


def view(model: Model) -> View:
    """Return the transforms and the class names of the weights; of the default ones where the model's are a file or random."""
    with of_libraries.offline(trust_of(model), f": torchvision's {model.name}"):
        return _view(model)


def _view(model: Model) -> View:
    weights = _weights(model)
    description = f"torchvision {weights}: {' '.join(str(weights.transforms()).split())}"
    names = (distinct(weights.meta["categories"]),) if "num_classes" not in model.kwargs else ()
    return View(weights.transforms(mean=(0.0,) * 3, std=(1.0,) * 3), 3, description, names)


def keep(model: Model, directory: Path, seed: int) -> dict[str, Json]:
    """Make or download the model and keep its weights. Raises UserError where there is none of the name, or no download."""
    name = of_libraries.wanted(model, "name")
    network_asked = model.path is None and model.weights != of_libraries.RANDOM
    with of_libraries.offline(trust_of(model), f": torchvision's {name}", network=network_asked):
        weights = _weights(model)
        transforms = weights.transforms()
        of_libraries.check_folded(_view(model), transforms, transforms.mean, transforms.std)
        facts: dict[str, Json] = {"name": name, "mean": list(transforms.mean), "std": list(transforms.std)}
        if of_user := of_libraries.given_weights(model, name, seed, lambda: architecture(name, model.kwargs)):
            network, original = of_user
        else:
            network, original = _downloaded(name, weights, model.kwargs), f"{name} ({weights.name})"
            facts["transform_input"] = bool(getattr(network, "transform_input", False))
        return of_libraries.keep_network(network, directory, model, _TorchvisionFile, {**facts, "original": original})


def load(facts: dict[str, Json], directory: Path, trust: Trust) -> Loaded:
    """Return the model that `keep` kept; its architecture by its name, which no file can make anything else of."""
    record = fitting(_TorchvisionFile, facts, MODEL_JSON, "what `train` wrote")
    with of_libraries.offline(trust, f": torchvision's {record.name}"):
        network = architecture(record.name, trust.kwargs)
        if record.transform_input is not None and hasattr(network, "transform_input"):
            network.transform_input = record.transform_input  # type: ignore[assignment]  # not a tensor: a switch
        return of_libraries.loaded(network, record, directory)


def _library() -> Any:
    with of_libraries.importing("torchvision"):
        import torchvision
    return torchvision.models


def classifiers() -> list[str]:
    """Return the names of torchvision's classifiers. Raises UserError where it does not import."""
    names: list[str] = _library().list_models(module=_library())
    return names


def parameter_count(name: str) -> int:
    """Return how many parameters an architecture has with its own head, from the table of its weights."""
    return int(_library().get_model_weights(name).DEFAULT.meta["num_params"])


def _weights(model: Model) -> Any:
    """Return the row of the weights enumeration that `weights` names; DEFAULT where it names none."""
    name = of_libraries.wanted(model, "name")
    if name not in classifiers():
        raise UserError(unknown_word("model.name", name, classifiers(), what="a classifier of torchvision"))
    weights = _library().get_model_weights(name)
    if model.weights in (None, of_libraries.PRETRAINED, of_libraries.RANDOM):
        return weights.DEFAULT
    if model.weights not in weights.__members__:
        allowed = [*weights.__members__, of_libraries.PRETRAINED, of_libraries.RANDOM]
        raise UserError(unknown_word("model.weights", str(model.weights), allowed, what=f"weights of {name}"))
    return weights[model.weights]


def architecture(name: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Return the architecture, without weights."""
    if name not in classifiers():
        raise UserError(unknown_word("model.name", name, classifiers(), what="a classifier of torchvision"))
    defaults = {"aux_logits": False, "init_weights": False} if name in _AUXILIARY else {}
    try:
        network: nn.Module = _library().get_model(name, weights=None, **{**defaults, **kwargs})
    except (TypeError, ValueError) as error:
        raise UserError(f"model.kwargs: torchvision's {name} refuses them ({first_line(error)})") from error
    return network.eval()


def _downloaded(name: str, row: Any, kwargs: Mapping[str, Any]) -> nn.Module:
    try:
        network: nn.Module = _library().get_model(name, weights=row, **kwargs)
    except (TypeError, ValueError) as error:
        raise UserError(f"model.kwargs: torchvision's {name} with {row} refuses them ({first_line(error)})") from error
    except Exception as error:  # the download's own errors: no network, a broken file
        raise UserError(
            f"model.weights: {row} cannot be downloaded here ({first_line(error)}); give model.path, a file of them, or "
            f"weights: random"
        ) from error
    for prefix in _AUXILIARY.get(name, ()):
        setattr(network, prefix.rstrip("."), None)
    return network.eval()
