"""Image classifiers of Hugging Face's transformers: a local folder or a hub id, with the image processor beside the weights.

No code of a repository's runs: `trust_remote_code` is never set, and what a configuration says of kernels is dropped.
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from PIL.Image import Image
from torch import Tensor, nn

from windtunnel.boundary.files import files_in, path_text
from windtunnel.boundary.models import of_libraries
from windtunnel.boundary.models.backends import LogitsOf
from windtunnel.boundary.models.loaders import Loaded
from windtunnel.boundary.models.record import MODEL_JSON, OfLibrary
from windtunnel.boundary.models.trust import Trust, trust_of
from windtunnel.boundary.network import NetworkRefusedError
from windtunnel.boundary.text import read_json_map
from windtunnel.core.contracts import Json
from windtunnel.core.errors import OutOfTimeError, UserError, shown
from windtunnel.core.references import first_line
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.params.model import Model
from windtunnel.records.metadata import Value, fitting
from windtunnel.registry.plugins import View, distinct

_INDEX_BYTES = 2**25  # of an index of weights
# Of a configuration: code of a repository's, kernels of the hub, and how weights were packed.
_DROPPED = tuple(
    """
    auto_map _attn_implementation _attn_implementation_internal attn_implementation _experts_implementation
    quantization_config
    """.split()
)


class _HuggingFaceFile(OfLibrary):
    config: dict[str, Value]


def view(model: Model) -> View:
    """Return the image processor's resizing and cropping, and the names in the configuration's `id2label`."""
    with _offline(model):
        config = _config(model)
        return _view(_processor(model), config)


def keep(model: Model, directory: Path, seed: int) -> dict[str, Json]:
    """Read or download the model and keep its configuration and weights.

    Raises UserError where it is not there, or holds no weights for some of its layers, which would be random ones.
    """
    with _offline(model):
        config, processor = _config(model), _processor(model)
        mean, std = _normalisation(processor, int(getattr(config, "num_channels", 3)))
        of_libraries.check_folded(_view(processor, config), lambda image: _seen(processor, image), mean, std)
        if model.weights == of_libraries.RANDOM:
            with seeded(derive_seed(seed, "model", "random weights")):
                network: nn.Module = LogitsOf(_network(config))
        else:
            network = _pretrained(model, config)
        facts: dict[str, Json] = {
            "config": json.loads(config.to_json_string(use_diff=False)),
            "mean": mean,
            "std": std,
            "original": Path(model.path).name if model.path else str(model.name),
        }
        return of_libraries.keep_network(network, directory, model, _HuggingFaceFile, facts)


def load(facts: dict[str, Json], directory: Path, trust: Trust) -> Loaded:
    """Return the model that `keep` kept, built from its configuration by a class of transformers' own."""
    record = fitting(_HuggingFaceFile, facts, MODEL_JSON, "what `train` wrote")
    content = {k: v for k, v in record.config.items() if k not in _DROPPED}
    kind = str(content.pop("model_type", ""))
    transformers = _library()
    with of_libraries.offline(trust, ": transformers, given the configuration in model.json,"):
        try:
            config = transformers.AutoConfig.for_model(kind, **content)
        except ValueError as error:
            raise UserError(f"model.json: config: transformers knows no model_type '{kind}'") from error
        return of_libraries.loaded(LogitsOf(_network(config)), record, directory)


def _library() -> Any:
    with of_libraries.importing("huggingface"):
        import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _offline(model: Model) -> AbstractContextManager[None]:
    """Limit the calls in the block. Raises UserError for a folder, or keys, that cannot be a model of this source."""
    if (model.path is None) == (model.name is None):
        raise UserError(
            "model.path, a local folder, or model.name, a hub id: one of the two for model.source: huggingface"
        )
    if model.weights not in (None, of_libraries.PRETRAINED, of_libraries.RANDOM):
        raise UserError(f"model.weights: {model.weights} is not allowed for huggingface; pretrained or random")
    if model.sha256:
        raise UserError("model.sha256: is the digest of one file; model.source: huggingface reads a folder")
    if model.path and not (Path(model.path) / "config.json").is_file():
        raise UserError(f"model.path: {model.path} is no folder with a config.json, as save_pretrained writes it")
    if model.path:
        _check_indices(Path(model.path))
    what = f": transformers, asked for {model.path or model.name}, which"
    return of_libraries.offline(trust_of(model), what, network=model.path is None)


def _where(model: Model) -> str:
    return f"model.path: {model.path}" if model.path else f"model.name: {model.name}"


def _check_indices(folder: Path) -> None:
    """Raise UserError where an index of weights in a folder names a file that is not in the folder."""
    for index in files_in(folder, "*.index.json"):
        names = read_json_map(index, where="model.path", max_bytes=_INDEX_BYTES).get("weight_map")
        if not isinstance(names, dict):
            raise UserError(f"model.path: {path_text(index)}: has no weight_map, of weights to files")
        for name in dict.fromkeys(map(str, names.values())):
            if Path(name).name != name:
                raise UserError(
                    f"model.path: {path_text(index)}: names {shown(name)}, which is no file of its folder; a file name is needed"
                )


def _from(model: Model, kind: str, missing: str, **options: object) -> Any:
    try:
        return getattr(_library(), kind).from_pretrained(
            model.path or model.name, trust_remote_code=False, local_files_only=model.path is not None, **options
        )
    except (NetworkRefusedError, OutOfTimeError, MemoryError):
        raise
    except Exception as error:  # OSError, ValueError and what the hub's client raises
        advice = "" if model.path else "; give model.path, a local folder"
        raise UserError(f"{_where(model)}: {missing} ({first_line(error)}){advice}") from error


def _config(model: Model) -> Any:
    config = _from(model, "AutoConfig", "its configuration is unavailable", **dict(model.kwargs))
    if config.model_type == "timm_wrapper":
        raise UserError(
            f"{_where(model)}: is a model of timm, {shown(getattr(config, 'architecture', ''))}, which model.source: timm reads by its "
            f"name, with model.path for weights of your own"
        )
    sizes = {"num_labels": config.num_labels, **config.to_dict()}
    for name, size in sizes.items():
        if (name.startswith("num_") or name.endswith("_size")) and isinstance(size, int) and size < 0:
            raise UserError(f"{_where(model)}: its configuration has {name}: {size}, a negative size")
    if config.num_labels < 1:
        raise UserError(f"{_where(model)}: its configuration has num_labels: {config.num_labels}; 1 at least")
    vars(config).pop("auto_map", None)  # transformers looks for its own class in it, and does not expect None
    for name in _DROPPED:
        if getattr(config, name, None) is not None:
            setattr(config, name, None)
    return config


def _processor(model: Model) -> Any:
    return _from(model, "AutoImageProcessor", "its image processor is unavailable; save it beside the weights")


def _network(config: Any) -> nn.Module:
    try:
        network: nn.Module = _library().AutoModelForImageClassification.from_config(config)
    except ValueError as error:
        raise UserError(
            f"model: {config.model_type} of transformers is no image classifier ({first_line(error)})"
        ) from error
    return network.eval()


def _pretrained(model: Model, config: Any) -> nn.Module:
    options = {"config": config, "output_loading_info": True}
    network, loading = _from(model, "AutoModelForImageClassification", "its weights are unavailable", **options)
    missing = sorted(map(str, [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]))
    if missing:
        raise UserError(
            f"{_where(model)}: holds no weights for {', '.join(missing[:4])}"
            f"{' and others' if len(missing) > 4 else ''}, which would be random ones; it is no trained image classifier"
        )
    return LogitsOf(network.float().eval())


def _seen(processor: Any, image: Image, **options: object) -> Tensor:
    pixels: Tensor = processor(images=image, return_tensors="pt", **options)["pixel_values"][0]
    return pixels


def _view(processor: Any, config: Any) -> View:
    def image(picture: Image) -> Tensor:
        # Without the shift that some processors have, so that the values are in [0, 1].
        plain = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": False}
        offset = {"rescale_offset": False} if getattr(processor, "rescale_offset", None) else {}
        return _seen(processor, picture, **plain, **offset).float()

    option_names = tuple(
        """
        do_resize size crop_pct resample do_center_crop crop_size do_rescale rescale_factor do_normalize image_mean
        image_std
        """.split()
    )
    options = {name: value for name in option_names if (value := getattr(processor, name, None)) is not None}
    description = f"transformers {type(processor).__name__}: {' '.join(str(options).split())}"
    labels = dict(config.id2label)
    names = [str(labels[key]) for key in sorted(labels, key=int)]
    label_names = names if any(not name.startswith("LABEL_") for name in names) else []
    return View(
        image, int(getattr(config, "num_channels", 3)), description, (distinct(label_names),) if label_names else ()
    )


def _normalisation(processor: Any, channels: int) -> tuple[list[float], list[float]]:
    """Return (mean, std) for values in [0, 1] from the processor's rescaling, shift and normalisation of 0..255."""
    rescaled = bool(getattr(processor, "do_rescale", True))
    factor = float(getattr(processor, "rescale_factor", 1 / 255)) if rescaled else 1.0
    offset = 1.0 if rescaled and getattr(processor, "rescale_offset", False) else 0.0
    normalised = bool(getattr(processor, "do_normalize", False))
    mean = _per_channel(processor.image_mean if normalised else 0.0, channels)
    std = _per_channel(processor.image_std if normalised else 1.0, channels)
    scale = 255 * factor
    return [(offset + m) / scale for m in mean], [s / scale for s in std]


def _per_channel(values: Any, channels: int) -> list[float]:
    return [float(values)] * channels if isinstance(values, int | float) else [float(value) for value in values]
