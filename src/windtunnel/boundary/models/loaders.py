"""One loader per kind of model that `import_model` keeps: from model.json and the files beside it to a torch module."""

import copy
import functools
import hashlib
import inspect
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from windtunnel.boundary.files import check_file
from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.boundary.models.backends import OnnxModule, PredictFunction, Program
from windtunnel.boundary.models.heads import Headed
from windtunnel.boundary.models.preprocess import Preprocessed
from windtunnel.boundary.models.programs import Refused, open_gradients, opened, read_program
from windtunnel.boundary.models.record import (
    Fetched,
    Graph,
    HeadRecord,
    KeptFile,
    ModelRecord,
    Steps,
    Trained,
    narrowed,
)
from windtunnel.boundary.models.trust import Trust
from windtunnel.core.classifier import module_digest
from windtunnel.core.contracts import Capability, Caveat
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.references import find_own_modules, first_line, resolve
from windtunnel.records.files import file_digest
from windtunnel.registry.plugins import model_source, plugins

TORCH = frozenset({Capability.FORWARD, Capability.AUTOGRAD, Capability.ONNX_GRAPH})
ONNX = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})
FUNCTION = frozenset({Capability.FORWARD})

# Where trainers keep the state dict inside a checkpoint.
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


FACTORY = "factory"  # the architecture in model.json of a model that the user's factory built and `train` trained


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model before it was tried on data; the fields are those of `Classifier`."""

    module: nn.Module
    capabilities: frozenset[Capability]
    digest: str
    source: str
    onnx_path: Path | None = None
    caveats: tuple[Caveat, ...] = ()
    # `model.head`, where it is not softmax
    head: HeadRecord | None = None


def load_trained(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Load the weights that a recipe of ours trained."""
    facts = narrowed(Trained, record)
    if facts.architecture == FACTORY:
        module = own_module(trust, "the model was trained from a factory")
    else:
        if facts.architecture not in ARCHITECTURES:
            raise UserError(
                unknown_word("model.json: architecture", facts.architecture, ARCHITECTURES, what="one of ours")
            )
        module = ARCHITECTURES[facts.architecture](facts.input_shape, facts.num_classes)
    load_weights(module, directory / "weights.pt", "the trained weights")
    return Loaded(module, TORCH, module_digest(module), f"{facts.recipe.recipe} {facts.architecture}")


def load_state_dict(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Return the user's factory with the user's weights."""
    facts = narrowed(KeptFile, record)
    module = own_module(trust, "the model is a state dict")
    which = load_weights(module, directory / facts.file, facts.original)
    return Loaded(module, TORCH, module_digest(module), f"{type(module).__name__} ({facts.original}{which})")


def own_module(trust: Trust, why: str) -> nn.Module:
    """Build the network by the user's factory. Raises UserError where params.yaml names none (`why` it is needed), or it builds none."""
    name = trust.required("factory", why)
    with trust.bounded(f".factory: {name}"):
        factory = resolve(name, f"{trust.key}.factory")
        module = factory(**trust.kwargs)
    if not isinstance(module, nn.Module):
        raise UserError(f"{trust.key}.factory: {name} returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def load_export(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Return a torch.export program; one that can run code only if the user's params allow pickles."""
    facts = narrowed(KeptFile, record)
    try:
        module = read_program(directory / facts.file, allow_pickle=trust.allow_pickle)
    except Refused as error:
        raise UserError(
            f"{trust.key}: {facts.original} {error}, which can run any code when loaded; {trust.key}.allow_pickle: true "
            f"loads it if you trust it"
        ) from error
    except Exception as error:  # torch.export.load raises many kinds for what is no program
        raise UserError(
            f"model.path: {facts.original} is not a torch.export program ({type(error).__name__})"
        ) from error
    cuts = open_gradients(module)
    name = f"torch.export program ({facts.original})"
    return Loaded(Program(module), TORCH, facts.sha256, name, caveats=(opened(cuts),) if cuts else ())


def load_onnx(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Return an ONNX graph: its torch form where that was found to agree with onnxruntime, else run by onnxruntime alone."""
    from windtunnel.boundary.models.onnx_gradients import converted

    facts = narrowed(Graph, record)
    expects = f", {facts.expects}" if facts.expects else ""
    path, digest, agreement = directory / facts.file, facts.sha256, facts.gradients
    name = f"ONNX ({facts.original}{expects})"
    if agreement.reason:
        with trust.bounded(f": {facts.original}, read by onnxruntime,"):
            module = OnnxModule(path)
        return Loaded(module, ONNX, digest, f"{name}, forward pass only: {agreement.reason}", path)
    network = converted(path, agreement.batch, agreement.shape)
    return Loaded(network, TORCH, digest, f"{name}, as torch", path, (agreement.caveat,))


def load_function(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Return the user's predict(batch) -> probabilities."""
    name = trust.required("function", "the model is a predict function")
    with trust.bounded(f".function: {name}"):
        function = resolve(name, f"{trust.key}.function")
    module = PredictFunction(functools.partial(function, **trust.kwargs), f"{trust.key}.function: {name}")
    return Loaded(module, FUNCTION, _source_digest(function), f"function {name}")


def load_pickle(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Return a module that MLflow pickled; only if the user's params allow it, regardless of model.json."""
    facts = narrowed(Fetched, record)
    if not trust.allow_pickle:
        raise UserError(
            f"{trust.key}: {facts.uri} is a pickle, which can run any code when loaded; "
            f"{trust.key}.allow_pickle: true loads it if you trust it"
        )
    find_own_modules()
    try:
        module = torch.load(directory / facts.file, map_location="cpu", weights_only=False)
    except Exception as error:  # a pickle can raise anything, most often that a class of the user's is not importable
        raise UserError(f"model.uri: {facts.uri} cannot be unpickled here ({first_line(error)})") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"model.uri: {facts.uri} holds a {type(module).__name__}, not a torch.nn.Module")
    return Loaded(module, TORCH, module_digest(module), f"pickle ({facts.uri})")


def load_mlflow(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
    """Load a model logged with MLflow, in any of its forms."""
    form = narrowed(Fetched, record).form
    if form not in MLFLOW_FORMS:
        raise UserError(unknown_word(f"{trust.key}: model.json: form", form, MLFLOW_FORMS, what="a form of a model"))
    return MLFLOW_FORMS[form](record, directory, trust)


Loader = Callable[[ModelRecord, Path, Trust], Loaded]
MLFLOW_FORMS: dict[str, Loader] = {"onnx": load_onnx, "export": load_export, "pickle": load_pickle}
LOADERS: dict[str, Loader] = {
    "train": load_trained,
    "state_dict": load_state_dict,
    "export": load_export,
    "onnx": load_onnx,
    "function": load_function,
    "mlflow": load_mlflow,
}


def loader_of(source: str, trust: Trust) -> Loader:
    """Return the loader of a `model.source`: of a form of ours, of a library that has a record of ours, or of a plug-in.

    A plug-in is code of somebody else's: raises UserError where model.json alone names it, and params.yaml does not.
    """
    if source in LOADERS:
        return as_kept(LOADERS[source])
    if source in plugins("windtunnel.models") and source != trust.plugin and not trust.allow_pickle:
        raise UserError(
            f"{trust.key}: model.json names the plug-in '{source}', which can run code on the files beside it; "
            f"{trust.key}.allow_pickle: true lets it, if you trust them"
        )
    load: Callable[[Mapping[str, object], Path, Trust], Loaded] = model_source(source).load()
    return as_kept(lambda record, directory, trust: load(record.facts, directory, trust))


def as_kept(load: Loader) -> Loader:
    """Wrap a loaded module with the recorded `model.preprocess` before it and `model.head` after it."""

    def loaded(record: ModelRecord, directory: Path, trust: Trust) -> Loaded:
        result, steps, head = load(record, directory, trust), record.preprocess, record.head
        for part in (steps, head):
            if part is not None:
                digest = hashlib.sha256(f"{result.digest} {part.model_dump_json()}".encode()).hexdigest()
                result = replace(result, digest=digest)
        if steps is not None:
            result = replace(result, module=preprocessed(result.module, steps))
        return result if head is None else with_head(result, head)

    return loaded


def with_head(loaded: Loaded, head: HeadRecord) -> Loaded:
    """Return the model behind its head; a predict function stays one, and an ONNX file may have it inside."""
    source = f"{loaded.source}, {head.criterion.name} head" if head.kind != "softmax" else loaded.source
    if isinstance(loaded.module, PredictFunction):
        loaded.module.head = Headed(nn.Identity(), head) if head.outputs is not None else None
        return replace(loaded, source=source, head=head)
    changes_outputs = not head.is_in_file and (
        head.outputs is not None or head.output_name is not None or head.output == "probability"
    )
    module = Headed(loaded.module, head).eval() if changes_outputs else loaded.module
    return replace(loaded, module=module, source=source, head=head)


def preprocessed(module: nn.Module, steps: Steps) -> nn.Module:
    """Return the module behind `steps`; a predict function stays one, and is given what it expects."""
    if isinstance(module, PredictFunction):
        module.preprocess = Preprocessed(nn.Identity(), steps)
        return module
    return Preprocessed(module, steps).eval()


def load_weights(module: nn.Module, path: Path, original: str) -> str:
    """Load a file of weights, or a trainer's checkpoint, into a module; return which of several state dicts it is (see `state_dict_in`).

    Raises UserError where it is none, or does not fit.
    """
    check_file(path, where="model.path")
    content = read_weights(path, original)
    try:
        state, which = state_dict_in(content)
        module.load_state_dict(_without_wrapper(state, module.state_dict().keys()))
    except Exception as error:  # keys or shapes that do not fit, or no state dict at all
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.path: {original} does not fit the architecture ({reason})") from error
    return which


def read_weights(path: Path, original: str) -> object:
    """Return the content of a file of weights, without running code of it. Raises UserError for a damaged file, and for a pickle."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # damaged files, and pickles that weights_only refuses
        raise UserError(
            f"model.path: {original} is not a state dict that loads with weights_only ({type(error).__name__}); "
            f"torch.save(model.state_dict(), path) writes one"
        ) from error


def state_dict_in(content: object) -> tuple[dict[str, Tensor], str]:
    """Return the state dict of a checkpoint, and in words which of several it is; empty where it is the only one.

    It is the content itself, what stands under a trainer's key, or the only state dict there; without the prefix of DataParallel
    and torch.compile.
    """
    which = ""
    if isinstance(content, dict) and not _is_state_dict(content):
        states = [key for key, value in content.items() if value and _is_state_dict(value)]
        keys = [*(key for key in _STATE_KEYS if key in states), *(key for key in states if key not in _STATE_KEYS)]
        if len(keys) > 1 and keys[0] not in _STATE_KEYS:
            raise UserError(f"it holds {', '.join(map(str, keys))}; save one of them alone")
        content = content[keys[0]] if keys else content
        which = f": {keys[0]}, not {', '.join(map(str, keys[1:]))}" if keys[1:] else ""
    if not _is_state_dict(content):
        raise UserError(f"it is a {type(content).__name__}, and not of names to tensors")
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):
        if all(str(key).startswith(prefix) for key in content):
            # In its metadata too, by which torch reads old forms.
            consume_prefix_in_state_dict_if_present(content, prefix)
    return content, which


def _without_wrapper(state: dict[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return the part of a state dict that has these names below a wrapper's prefix, as Lightning's `model.`; itself where none has.

    Raises UserError where several parts have them.
    """
    last = max(names, key=len, default="")
    prefixes = [key.removesuffix(last) for key in state if key.endswith(f".{last}")]
    fitting = [prefix for prefix in prefixes if all(prefix + name in state for name in names)]
    if not fitting or last in state:
        return state
    if len(fitting) > 1:
        raise UserError(f"it fits below {', '.join(fitting)}; save the state dict of one of them alone")
    part = copy.copy(state)  # with its metadata
    consume_prefix_in_state_dict_if_present(part, fitting[0])
    for key in part.keys() - set(names):
        del part[key]
    return part


def _is_state_dict(value: object) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(value, dict) and all(map(_is_weight, value.values()))


def _is_weight(value: object) -> bool:
    """Return True for a tensor, and for what a quantized layer keeps beside tensors: types, and pairs of weights and bias."""
    if isinstance(value, tuple):
        return all(part is None or isinstance(part, Tensor) for part in value)
    return isinstance(value, Tensor | torch.dtype)


def _source_digest(function: Callable[..., object]) -> str:
    """sha256 of the file that defines a function: all that can be known of a model that is code."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # a builtin, or an object that is callable
        file = None
    return file_digest(Path(file)) if file else hashlib.sha256(type(function).__qualname__.encode()).hexdigest()
