"""Classifiers of timm: architecture, weights or a checkpoint of one's own, and the transforms of its configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from windtunnel.boundary.models import of_libraries
from windtunnel.boundary.models.loaders import Loaded
from windtunnel.boundary.models.record import MODEL_JSON, OfLibrary
from windtunnel.boundary.models.trust import Trust, trust_of
from windtunnel.boundary.network import NetworkRefusedError
from windtunnel.core.contracts import Json
from windtunnel.core.errors import OutOfTimeError, UserError, shown, unknown_word
from windtunnel.core.references import first_line
from windtunnel.params.model import Model
from windtunnel.records.metadata import fitting
from windtunnel.registry.plugins import View, distinct

_MAX_CLASSES = 1_000_000
_HUB = ("hf-hub:", "hf_hub:")


class _TimmFile(OfLibrary):
    name: str
    num_classes: int


def view(model: Model) -> View:
    """Return the transforms of timm's configuration of the model, and the names of its classes."""
    name = of_libraries.wanted(model, "name")
    with of_libraries.offline(trust_of(model), f": timm's {name}", network=name.startswith(_HUB)):
        return _view(_network(name, model.kwargs))


def keep(model: Model, directory: Path, seed: int) -> dict[str, Json]:
    """Make or download the model and keep its weights. Raises UserError where there is none of the name, or no download."""
    name = of_libraries.wanted(model, "name")
    if model.weights not in (None, of_libraries.PRETRAINED, of_libraries.RANDOM):
        raise UserError(
            f"model.weights: {model.weights} is not allowed for timm, where the weights stand in the name "
            f"(resnet50.a1_in1k); {of_libraries.PRETRAINED} or {of_libraries.RANDOM}"
        )
    network_asked = name.startswith(_HUB) or (model.path is None and model.weights != of_libraries.RANDOM)
    with of_libraries.offline(trust_of(model), f": timm's {name}", network=network_asked):
        if of_user := of_libraries.given_weights(model, name, seed, lambda: _network(name, model.kwargs)):
            network, original = of_user
        else:
            network = _network(name, model.kwargs, pretrained=True)
            original = f"{name} ({_config(network).get('tag') or of_libraries.PRETRAINED})"
        config = _data_config(network)
        of_libraries.check_folded(_view(network), _transforms(config), config["mean"], config["std"])
        facts: dict[str, Json] = {
            # A name on a hub stands for an architecture, which can be built without one.
            "name": str(_config(network).get("architecture") or name) if name.startswith(_HUB) else name,
            "mean": list(config["mean"]),
            "std": list(config["std"]),
            "original": original,
            "num_classes": int(network.num_classes),  # type: ignore[arg-type]
        }
        return of_libraries.keep_network(network, directory, model, _TimmFile, facts)


def load(facts: dict[str, Json], directory: Path, trust: Trust) -> Loaded:
    """Return the model that `keep` kept; its architecture by its name, which no file can make anything else of."""
    record = fitting(_TimmFile, facts, MODEL_JSON, "what `train` wrote")
    if record.name.startswith(_HUB):  # a name that model.json is not to have: nothing is fetched for a file's sake
        raise UserError(f"model.json: name: '{record.name}' is a place on a hub, not an architecture of timm")
    with of_libraries.offline(trust, f": timm's {record.name}"):
        return of_libraries.loaded(
            _network(record.name, {"num_classes": record.num_classes, **trust.kwargs}), record, directory
        )


def _library() -> Any:
    with of_libraries.importing("timm"):
        import timm
        import timm.data
    return timm


def _network(name: str, kwargs: Mapping[str, Any], *, pretrained: bool = False) -> nn.Module:
    number = kwargs.get("num_classes", 1)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MAX_CLASSES:
        raise UserError(f"model.kwargs: num_classes: {shown(number)} is no number of classes; 1 to {_MAX_CLASSES}")
    timm = _library()
    if not name.startswith(_HUB) and not timm.is_model(name):
        raise UserError(unknown_word("model.name", name, timm.list_models(), what="a model of timm"))
    try:
        network: nn.Module = timm.create_model(name, pretrained=pretrained, **kwargs)
    except (NetworkRefusedError, OutOfTimeError, MemoryError):
        raise
    except TypeError as error:
        raise UserError(f"model.kwargs: timm's {name} refuses them ({first_line(error)})") from error
    except Exception as error:  # unknown tags, and whatever a download raises
        advice = "; give model.path, a file of them, or weights: random" if pretrained or name.startswith(_HUB) else ""
        raise UserError(f"model.name: timm's {name} is unavailable here ({first_line(error)}){advice}") from error
    return network.eval()


def _config(network: nn.Module) -> dict[str, Any]:
    return dict(network.pretrained_cfg)  # type: ignore[arg-type]  # timm sets it on every model


def _data_config(network: nn.Module) -> dict[str, Any]:
    config: dict[str, Any] = _library().data.resolve_model_data_config(network)
    return config


def _transforms(config: Mapping[str, Any]) -> Any:
    return _library().data.create_transform(**config, is_training=False)


def _view(network: nn.Module) -> View:
    config = _data_config(network)
    channels = int(config["input_size"][0])
    plain = _transforms({**config, "mean": (0.0,) * channels, "std": (1.0,) * channels})
    description = f"timm {_config(network).get('architecture')}: {' '.join(str(_transforms(config)).split())}"
    return View(plain, channels, description, _names(network))


def _names(network: nn.Module) -> tuple[tuple[str, ...], ...]:
    """ImageNet's descriptions and WordNet ids, or the names that the configuration brings."""
    config, data = _config(network), _library().data
    if (names := config.get("label_names")) and len(names) == network.num_classes:
        return (distinct([str(name) for name in names]),)
    if config.get("num_classes") != network.num_classes or not (subset := data.infer_imagenet_subset(config)):
        return ()
    info = data.ImageNetInfo(subset)
    rows = range(info.num_classes())
    return (
        distinct([info.index_to_description(i, detailed=False) for i in rows]),
        distinct([info.index_to_label_name(i) for i in rows]),
    )
