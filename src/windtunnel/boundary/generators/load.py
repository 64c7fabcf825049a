"""From `generators` in params.yaml to `FittedGenerator`: `make_generators` once, by the stage; `load_generators` by every use."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from windtunnel.boundary.files import check_file
from windtunnel.boundary.generators.interface import TIME_LIMIT, FittedGenerator, GenerativeModel
from windtunnel.boundary.generators.training import built, train_generators
from windtunnel.boundary.limits import bounded
from windtunnel.boundary.models.load import pick_device
from windtunnel.boundary.params_file import configured_limits
from windtunnel.core.classifier import module_digest
from windtunnel.core.contracts import Json
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.references import FOREIGN, first_line, resolve
from windtunnel.params.latent import GeneratorRecipe, Generators
from windtunnel.records.artifacts import load_tensors, save_tensors
from windtunnel.records.files import file_digest, read_json, replacing, write_json
from windtunnel.records.metadata import Record, Value, fitting
from windtunnel.records.result import plain_tensors

WEIGHTS, GENERATORS_JSON = "weights.pt", "generators.json"
PROBES = 4  # codes of each class that a model of the user's is tried on
RANGE_TOLERANCE = 1e-4


class GeneratorsRecord(Record):
    """The generative models of a run; with `source: none` there are none. decay: see `generators.decay`."""

    source: Literal["none", "train", "function"]
    decay: float = 1.0


class TrainedGenerators(GeneratorsRecord):
    """`source: train`. shape: of one image. n_train: images they were trained on."""

    recipe: GeneratorRecipe
    shape: tuple[int, ...]
    num_classes: int
    n_train: int


class OwnGenerators(GeneratorsRecord):  # type: ignore[no-redef]  # see records.metadata.Metadata
    """`source: function`: what the user's function builds. value_range: of its images. original, sha256: of its weights."""

    function: str
    kwargs: dict[str, Value] = Field(default_factory=dict)
    value_range: tuple[float, float] | None = None
    original: str | None = None
    sha256: str | None = None


_KINDS: dict[str, type[GeneratorsRecord]] = {
    "none": GeneratorsRecord,
    "train": TrainedGenerators,
    "function": OwnGenerators,
}


def read_record(directory: Path) -> GeneratorsRecord:
    """Read the record of the stage in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path, what = directory / GENERATORS_JSON, "what the stage `generators` wrote"
    content = read_json(path)
    source = fitting(GeneratorsRecord, content, str(path), what).source
    return fitting(_KINDS[source], content, str(path), what)


def make_generators(block: Generators, train: Dataset | None, seed: int, device: str, directory: Path) -> None:
    """Train the recipe, or import the user's model, into `directory`. Raises UserError where it is unavailable."""
    directory.mkdir(parents=True, exist_ok=True)
    record = GeneratorsRecord(source=block.source, decay=float(block.decay))
    (directory / WEIGHTS).unlink(missing_ok=True)
    if block.source == "train":
        split = labelled(train)
        model = train_generators(block.train, split, seed, pick_device(device))
        save_tensors(dict(model.state_dict()), directory / WEIGHTS)
        record = TrainedGenerators(
            source=block.source,
            decay=record.decay,
            recipe=block.train,
            shape=tuple(split.inputs.shape[1:]),
            num_classes=split.num_classes,
            n_train=len(split),
        )
    elif block.source == "function":
        if path := _own_weights(block):
            with replacing(directory / WEIGHTS) as temporary:
                shutil.copyfile(path, temporary)
        record = OwnGenerators(
            source=block.source,
            decay=record.decay,
            function=_function(block),
            kwargs=dict(block.kwargs),
            value_range=block.value_range,
            original=path.name if path else None,
            sha256=file_digest(path) if path else None,
        )
    write_json(record.model_dump(mode="json"), directory / GENERATORS_JSON)


def generators_in(resolved: Json) -> Generators:
    """Return the block as it was resolved, with how long its model may take, which decides no result."""
    block = fitting(dict[str, Value], resolved, "generators", "a resolved block")
    return Generators.model_validate({**block, **configured_limits("generators")})


def load_generators(
    directory: Path, device: torch.device, dataset: Dataset, block: Generators | None = None
) -> FittedGenerator | None:
    """Load what `make_generators` wrote, tried on the data (see `fit`); None where `generators.source` is none.

    The function that builds a model of the user's is the one of `block`, from params.yaml, never one that a file names.
    """
    record = read_record(directory)
    if isinstance(record, TrainedGenerators):
        model = built(record.recipe, record.num_classes, record.shape)
        model.load_state_dict(plain_tensors(load_tensors(directory / WEIGHTS)))
        return replace(fit(model, f"{record.recipe.algorithm} per class", None, device, dataset), decay=record.decay)
    if not isinstance(record, OwnGenerators):
        return None
    if block is None or block.source != "function":
        raise UserError(
            f"{directory / GENERATORS_JSON}: names a function, and generators of params.yaml does not; run dvc repro"
        )
    weights = directory / WEIGHTS if record.original else None
    return replace(_own(block, weights, record.value_range, device, dataset), decay=record.decay)


def check_generators(block: Generators, train: Dataset | None, device: str, dataset: Dataset) -> FittedGenerator | None:
    """Return the generative models as `windtunnel check` can have them: untrained where the run trains them, None for none.

    Raises UserError, in one line, for a block that cannot be made or does not fit the data.
    """
    if block.source == "train":
        split = labelled(train)
        if split.inputs.shape[1:] != dataset.inputs.shape[1:]:
            raise IncompatibleError(
                f"generators.source: train images are {_x(split.inputs.shape[1:])}, the data {_x(dataset.inputs.shape[1:])}"
            )
        model = built(block.train, split.num_classes, tuple(split.inputs.shape[1:]))
        return fit(model, f"{block.train.algorithm} per class", None, pick_device(device), dataset)
    if block.source == "function":
        return _own(block, _own_weights(block), block.value_range, pick_device(device), dataset)
    return None


def labelled(train: Dataset | None) -> Dataset:
    """Return the training split. Raises UserError where there is none, or none with labels."""
    if train is None:
        raise UserError("generators.source: train needs a training split; give data.train_path, or bring a function")
    if not train.labelled:
        raise UserError("generators.source: train needs labels, a model is trained per class; give data.train_labels")
    return train


def _function(block: Generators) -> str:
    if block.function is None:
        raise UserError("generators.function: is required for generators.source: function")
    return block.function


def _own_weights(block: Generators) -> Path | None:
    return check_file(Path(block.path), where="generators.path") if block.path else None


def _own(
    block: Generators, weights: Path | None, span: tuple[float, float] | None, device: torch.device, dataset: Dataset
) -> FittedGenerator:
    """Return the user's model, its weights loaded, tried on the data."""
    reference = _function(block)
    with bounded(f"generators.function: {reference}", block.time_limit, TIME_LIMIT):
        function = resolve(reference, "generators.function")
        model = function(**block.kwargs)
    if not isinstance(model, GenerativeModel):
        lacking = [name for name in ("decode", "latent_dim") if not hasattr(model, name)]
        raise UserError(
            f"generators.function: {reference} returned a {type(model).__name__} without {' and '.join(lacking)}; see "
            f"windtunnel.boundary.generators.interface.GenerativeModel"
        )
    if weights is not None:
        if not isinstance(model, nn.Module):
            raise UserError(f"generators.path: {reference} returned no torch module that weights can be loaded into")
        try:
            model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        except FOREIGN as error:  # damaged files, pickles, keys or shapes that do not fit
            raise UserError(
                f"generators.path: does not load into what {reference} returned ({first_line(error)})"
            ) from error
    return fit(model, f"function {reference}", span, device, dataset, block.time_limit)


def fit(
    model: GenerativeModel,
    source: str,
    span: tuple[float, float] | None,
    device: torch.device,
    dataset: Dataset,
    time_limit: float = 60.0,
) -> FittedGenerator:
    """Try a generative model on the data: every class, the shape, the range, finite images, the encoder's dimension.

    Raises IncompatibleError, in one line with both values.
    """
    if isinstance(model, nn.Module):
        model = model.requires_grad_(False).eval().to(device)
    low, high = span if span is not None else getattr(model, "value_range", (0.0, 1.0))
    digest = module_digest(model) if isinstance(model, nn.Module) else source
    spans = ((float(low), float(high)), dataset.value_range)
    generators = FittedGenerator(model, dataset.num_classes, *spans, digest, source, time_limit=time_limit)
    names = dataset.class_names
    missing = [names[i] for i in range(len(names)) if i not in getattr(model, "classes", range(len(names)))]
    if missing:
        raise IncompatibleError(
            f"generators: {source} has no class {', '.join(missing[:5])}; the data has {len(names)}"
        )
    latents = torch.randn(PROBES * len(names), model.latent_dim, generator=torch.Generator().manual_seed(0)).to(device)
    classes = torch.arange(len(names), device=device).repeat(PROBES)
    advice = f"codes have shape (N, latent_dim), and latent_dim is {model.latent_dim}"
    with torch.no_grad(), generators.asked():
        images = _tried(lambda: model.decode(latents, classes), f"generators: {source} does not decode", advice)
    shape = tuple(dataset.inputs.shape[1:])
    if tuple(images.shape) != (len(latents), *shape):
        raise IncompatibleError(
            f"generators: {source} decodes {len(latents)} codes to shape {tuple(images.shape)}; the model takes {_x(shape)} "
            f"inputs, so {(len(latents), *shape)} is needed"
        )
    if not images.isfinite().all():
        bad = names[int(classes[(~images.flatten(1).isfinite().all(1)).nonzero()[0, 0]])]
        raise IncompatibleError(f"generators: {source} decodes class {bad} to NaN or infinity")
    slack = RANGE_TOLERANCE * (high - low)
    if images.min() < low - slack or images.max() > high + slack:
        raise IncompatibleError(
            f"generators: {source} gives images in [{float(images.min()):.4g}, {float(images.max()):.4g}], outside its range "
            f"[{low:g}, {high:g}]; generators.value_range says what they span, e.g. [-1, 1]"
        )
    if generators.has_encoder:
        with torch.no_grad():
            codes = _tried(
                lambda: generators.encode(dataset.inputs[:1].to(device), classes[:1]),
                f"generators: {source} does not encode",
                f"images have shape (N, {_x(shape)})",
            )
        needed, is_finite = (1, model.latent_dim), bool(codes.isfinite().all())
        if tuple(codes.shape) != needed or not is_finite:
            raise IncompatibleError(
                f"generators: {source} encodes one image to {'' if is_finite else 'NaN or '}shape {tuple(codes.shape)}; its "
                f"latent_dim is {model.latent_dim}, so finite codes of shape {needed} are needed"
            )
    return generators


def _tried(work: Callable[[], object], complaint: str, advice: str) -> Tensor:
    try:
        result = work()
    except FOREIGN as error:  # whatever the user's model raises on what does not fit it
        raise IncompatibleError(f"{complaint} ({first_line(error)}); {advice}") from error
    if not isinstance(result, Tensor):
        raise IncompatibleError(f"{complaint} to a tensor but to a {type(result).__name__}")
    return result


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
