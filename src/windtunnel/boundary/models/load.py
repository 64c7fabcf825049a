"""From `model` in params.yaml to a Classifier: `import_model` once, by `train`; `load_classifier` by every stage after."""

import atexit
import functools
import math
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.boundary.files import check_file
from windtunnel.boundary.models import loaders
from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.boundary.models.backends import PredictFunction, Program, copy_graph, giving_logits
from windtunnel.boundary.models.heads import adapt_outputs, head_of
from windtunnel.boundary.models.preprocess import Preprocessed, adapt_graph, steps_of
from windtunnel.boundary.models.programs import cutting_operator
from windtunnel.boundary.models.record import LIMIT, MODEL_JSON, Steps, read_model, write_model
from windtunnel.boundary.models.training import train_classifier
from windtunnel.boundary.models.trust import NOTHING, Trust, require_sha256, trust_of
from windtunnel.boundary.models.twin import TWIN, agreement_of, with_twin
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Json
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, OutOfTimeError, UserError, unknown_word
from windtunnel.core.references import first_line
from windtunnel.core.seeds import make_deterministic
from windtunnel.params.model import Model, OtherModel, Preprocess
from windtunnel.records.artifacts import save_tensors
from windtunnel.records.files import file_digest, replacing
from windtunnel.registry.plugins import model_source, model_sources
from windtunnel.runtime.supervised import begin, end

UNTRAINED = "untrained"  # the digest of a model that is yet to be trained
TESTED_DEVICES = ("cpu", "cuda")


def pick_device(name: str) -> torch.device:
    """`auto` is the first accelerator there is, else the CPU. Raises UserError for a device that is not there.

    Warns once on stderr for a device kind that our tests do not cover. CUDA is held to deterministic algorithms.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = accelerator or torch.device("cpu")
    else:
        try:
            device = torch.device(name)
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
            raise UserError(f"device: '{name}' is unavailable here ({first_line(error)}); auto picks one") from error
    if device.type == "meta":
        raise UserError("device: 'meta' holds no numbers; auto picks one that does")
    if device.type not in TESTED_DEVICES:
        _warn_untested(device.type)
    make_deterministic(device)
    return device


@functools.cache
def _warn_untested(kind: str) -> None:
    text = f"windtunnel: device: no test of windtunnel ran on {kind}; compare a small run with device: cpu first"
    print(text, file=sys.stderr)


def import_model(
    model: Model,
    train: Dataset | None,
    seed: int,
    device: str,
    directory: Path,
    server: str | None = None,
    assessed: Dataset | None = None,
    limit: float = LIMIT,
) -> None:
    """Make or fetch the model and keep all of it in `directory`, so that later stages read nothing else.

    `model.preprocess` is kept beside it, that of an ONNX graph inside the file. An ONNX graph is compared with its torch
    form on the samples `assessed`; without them, or where logits differ by more than `limit` of their spread, it has a
    forward pass alone.

    `server` is MLflow's `tracking.uri`. Raises UserError where the model is unavailable or its digest is not the `sha256` of params.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("weights.*"):
        stale.unlink()
    facts: dict[str, object] = {"source": model.source}
    steps, head = _steps(model, train if model.source == "train" else assessed), head_of(model)
    if head is not None and head.outputs is not None and model.source == "train":
        raise UserError(f"model.head: {head.kind}: source: train makes one logit a class; give a trained model")
    if model.source == "train":
        split = _labelled(train)
        build = partial(_own_module_to_train, trust_of(model), steps) if model.factory else None
        module = train_classifier(model.train, split, seed, pick_device(device), build)
        weights = module.network if isinstance(module, Preprocessed) else module
        save_tensors(dict(weights.state_dict()), directory / "weights.pt")
        facts |= {
            "architecture": loaders.FACTORY if model.factory else model.train.architecture,
            "recipe": model.train.used(),
            "input_shape": list(split.inputs.shape[1:]),
            "num_classes": split.num_classes,
        }
    elif model.source == "function":
        facts |= {"function": _required(model.function, "function"), "kwargs": dict(model.kwargs)}
    elif model.source in model_sources():
        keep = model_source(model.source).keep
        kept_file = _kept_file(model, directory) if model.path and not keep else {}
        facts |= {"kwargs": dict(model.kwargs), **(keep()(model, directory, seed) if keep else kept_file)}
    elif model.source == "mlflow":
        from windtunnel.boundary.models.from_mlflow import fetch_model

        uri = _required(model.uri, "uri")
        facts |= fetch_model(uri, directory, allow_pickle=model.allow_pickle, server=server)
        require_sha256(model, str(facts["sha256"]), uri)
    else:
        facts |= _kept_file(model, directory)
        if model.source == "state_dict":
            facts |= {"factory": _required(model.factory, "factory"), "kwargs": dict(model.kwargs)}
    if assessed is not None and facts.get("form", model.source) == "onnx":
        from windtunnel.boundary.models.onnx_gradients import compare

        file = directory / str(facts["file"])
        with trust_of(model).bounded(f": {facts['original']}, read and run by onnxruntime,"):
            facts["expects"] = adapt_graph(file, model.preprocess, assessed.inputs.shape[1:], str(facts["original"]))
            head = adapt_outputs(file, head, model.output, str(facts["original"]))
            facts["sha256"], facts["gradients"] = file_digest(file), compare(file, assessed.inputs, limit)
    elif steps:
        facts["preprocess"] = steps
    if head is not None:
        facts["head"] = head.model_dump(mode="json")
    write_model(facts, directory)
    shutil.rmtree(directory / TWIN, ignore_errors=True)
    if (twin := model.twin_model) and assessed is not None:
        with _keys_of_twin():  # a twin's logits count nowhere, so its torch form may differ
            import_model(twin, train, seed, device, directory / TWIN, server, assessed, math.inf)
        trust = trust_of(model)
        assert trust.twin
        other = load_classifier(directory / TWIN, device, assessed, trust.twin)
        if Capability.AUTOGRAD not in other.capabilities:
            raise IncompatibleError(
                f"model.twin: {other.source}: a twin is there for its gradients, and this one has none"
            )
        deployed = load_classifier(directory, device, assessed, replace(trust, twin=None))
        write_model({**facts, "twin": agreement_of(deployed, other, assessed.inputs)}, directory)


@contextmanager
def _keys_of_twin() -> Iterator[None]:
    """Name keys of `model.twin` in messages of the block, which import it as a model of its own."""
    try:
        yield
    except UserError as error:
        raise type(error)(re.sub(r"^model(?!\.twin)", "model.twin", str(error))) from error


def _steps(model: Model, data: Dataset | None) -> Steps | None:
    """`model.preprocess` for the data; None where it changes nothing. Raises UserError where it does not fit them."""
    if model.preprocess == Preprocess():
        return None
    if data is None:
        raise UserError("model.preprocess: needs the data, whose shape says how many channels there are")
    values = model.preprocess.value_keys
    if values and model.source in model_sources() and model_source(model.source).view:
        raise UserError(
            f"model.preprocess.{values[0]}: {model.source} brings its normalisation, which is inside already; remove it"
        )
    steps = steps_of(model.preprocess, data.inputs.shape[1:])
    return steps if steps.label else None


def _own_module_to_train(trust: Trust, steps: Steps | None) -> torch.nn.Module:
    module = loaders.own_module(trust, "it is trained")
    module = loaders.preprocessed(module, steps) if steps else module
    limit_answers(module, trust)
    return module


def _kept_file(model: Model, directory: Path) -> dict[str, Json]:
    """Copy `model.path` into `directory` and return its record for model.json."""
    path = check_file(Path(_required(model.path, "path")), where="model.path")
    require_sha256(model, file_digest(path), str(path))
    name = f"weights{path.suffix}"
    with replacing(directory / name) as temporary:
        (copy_graph if model.source == "onnx" else shutil.copyfile)(path, temporary)
    return {"file": name, "sha256": file_digest(directory / name), "original": path.name}


def load_classifier(directory: Path, device: str, dataset: Dataset, trust: Trust = NOTHING) -> Classifier:
    """Return the model that `import_model` kept, checked against the data it is to classify (see `fit`).

    What of the user's may be called for it is in `trust`, which comes from params.yaml; model.json decides nothing of it.
    Raises UserError, in one line, for what is damaged, incomplete, not allowed or does not fit.
    """
    record = read_model(directory)
    if record.source not in (sources := {*loaders.LOADERS, *model_sources()}):
        raise UserError(
            unknown_word(f"{directory / MODEL_JSON}: source", record.source, sources, what="a source of models")
        )
    try:
        loaded = loaders.loader_of(record.source, trust)(record, directory, trust)
    except (KeyError, TypeError) as error:  # a plug-in's, which reads the file as the mapping that it is
        raise UserError(f"{directory / MODEL_JSON}: not what `train` wrote: {error} is missing or damaged") from error
    if trust.twin:
        twin = load_classifier(directory / TWIN, device, dataset, trust.twin)
        loaded = with_twin(loaded, twin, record.twin)
    return fit(loaded, pick_device(device), dataset, trust)


def preview_classifier(
    model: Model, dataset: Dataset, train: Dataset | None, device: str, server: str | None = None
) -> Classifier:
    """Return the classifier as it will be: an import is made in full, a recipe gives its untrained module. For `check`."""
    if model.source == "train":
        split = _labelled(train)
        if model.factory:
            module = _own_module_to_train(trust_of(model), _steps(model, split))
        else:
            module = ARCHITECTURES[model.train.architecture](tuple(split.inputs.shape[1:]), split.num_classes)
        source = f"{model.train.recipe} {model.factory or model.train.architecture}, not trained yet"
        loaded, head = loaders.Loaded(module, loaders.TORCH, UNTRAINED, source), head_of(model)
        return fit(loaders.with_head(loaded, head) if head else loaded, pick_device(device), dataset, trust_of(model))
    # Until the process ends: a verifier that is tried on the classifier reads its ONNX graph again.
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    import_model(model, train, 0, device, Path(folder.name), server, dataset)
    return load_classifier(Path(folder.name), device, dataset, trust_of(model))


def named_classifier(
    key: str, location: str | OtherModel, dataset: Dataset, device: str, server: str | None
) -> Classifier:
    """Return the classifier at `location`, whose name becomes its `source`; it runs nothing that does not stand at `key`.

    A directory is reports/model of an earlier run, or the reports directory that holds it; anything with `:/` is an
    MLflow URI, on the tracking server `server`. Raises UserError, naming the key `key`, for one that is not there or
    does not fit the data.
    """
    other = OtherModel.of(location)
    name, trust = other.model, trust_of(other, key)
    try:
        model = (
            _fetched(other, dataset, device, server, trust)
            if ":/" in name
            else _model_of_run(name, dataset, device, trust)
        )
    except UserError as error:
        line = str(error)
        raise UserError(line if line.startswith(key) else f"{key}: {line}") from error
    return replace(model, source=name)


def _model_of_run(name: str, dataset: Dataset, device: str, trust: Trust) -> Classifier:
    directories = [folder for folder in (Path(name), Path(name) / "model") if (folder / MODEL_JSON).is_file()]
    if not directories:
        raise UserError(
            f"'{name}' holds no {MODEL_JSON}; name the reports/model directory of an earlier run, or an MLflow URI "
            f"(models:/name/3)"
        )
    return load_classifier(directories[0], device, dataset, trust)


def _fetched(other: OtherModel, dataset: Dataset, device: str, server: str | None, trust: Trust) -> Classifier:
    model = Model(source="mlflow", uri=other.model, allow_pickle=other.allow_pickle)
    with tempfile.TemporaryDirectory() as folder:
        import_model(model, None, 0, device, Path(folder), server, dataset)
        return load_classifier(Path(folder), device, dataset, trust)


def fit(loaded: loaders.Loaded, device: torch.device, dataset: Dataset, trust: Trust = NOTHING) -> Classifier:
    """Try a model on the data: it takes their shape, in batches, and gives logits (N, K) of as many classes as theirs.

    A Python `predict` is not called here.

    Raises IncompatibleError, in one line with both values.
    """
    shape = tuple(dataset.inputs.shape[1:])
    module, criterion = loaded.module.to(device).eval(), loaded.head.criterion if loaded.head else SOFTMAX
    if criterion.k > 1 and criterion.k >= dataset.num_classes:
        raise IncompatibleError(
            f"model.head: top_k: {criterion.k} of {dataset.num_classes} classes: no answer could be wrong; less than that"
        )
    if loaded.head and loaded.head.outputs is not None and dataset.num_classes != 2:
        raise IncompatibleError(
            f"model.head: {loaded.head.kind} answers no or yes, the data has {dataset.num_classes} classes; labels are 0 and 1"
        )
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # attacks differentiate by the input alone
    origin = (loaded.digest, loaded.source, device, loaded.onnx_path, loaded.caveats, criterion)
    if isinstance(module, PredictFunction):  # its queries may cost money: it is checked at the first that is needed
        module.num_classes, module.time_limit, module.interface = dataset.num_classes, trust.time_limit, trust.interface
        return Classifier(module, dataset.num_classes, shape, loaded.capabilities, *origin)
    sample = dataset.inputs[:1].to(device)
    fed = sample.clone()
    problem = f"model: {loaded.source} does not take inputs of shape {shape}"
    logits = _tried(module, fed, problem, "data.resize and data.channels change them", trust)
    if not torch.equal(fed, sample):
        raise IncompatibleError(
            f"model: {loaded.source} changes its input in place, so what is measured is not what it was given; let its "
            f"forward pass work on a copy (x = x.clone())"
        )
    if (module_of_logits := giving_logits(module, logits)) is not module:
        module = module_of_logits
        logits = module(fed)
    if reason := _why_no_logits(logits, dataset):
        raise IncompatibleError(f"model: {loaded.source} {reason}")
    assert isinstance(logits, Tensor)
    problem = f"model: {loaded.source} takes one sample and no batch"
    cure = "export it with dynamic_shapes=({0: torch.export.Dim('n')},), from an example of two samples"
    pair = _tried(module, sample.expand(2, *shape).contiguous(), problem, cure, trust)
    if not isinstance(pair, Tensor) or pair.shape != (2, logits.shape[1]):
        description = f"shape {tuple(pair.shape)}" if isinstance(pair, Tensor) else type(pair).__name__
        raise IncompatibleError(
            f"model: {loaded.source} gives {description} for two samples; a row of logits for each, (2, {logits.shape[1]}), is needed"
        )
    _check_output_kind(loaded, module, dataset.inputs[:32].to(device))
    is_differentiable = Capability.AUTOGRAD not in loaded.capabilities or _differentiable(module, sample)
    limit_answers(module, trust)
    classifier = Classifier(module, dataset.num_classes, shape, loaded.capabilities, *origin)
    if is_differentiable:
        return classifier
    operator = (
        cutting_operator(module, sample) if isinstance(module, Program) else "no_grad, detach or a quantised layer"
    )
    source = f"{loaded.source}, whose forward pass cuts off the gradient ({operator})"
    return replace(classifier, capabilities=loaded.capabilities - {Capability.AUTOGRAD}, source=source)


def _why_no_logits(logits: object, dataset: Dataset) -> str:
    """Return what is wrong with an answer to one sample; empty for logits (1, K) of the K classes of the data."""
    needed = f"for one sample; logits of shape (N, K) are needed{_other_heads(logits)}"
    if not isinstance(logits, Tensor):
        return f"gives {type(logits).__name__} {needed}"
    holds_no_numbers = logits.layout is not torch.strided or logits.device.type == "meta"
    if holds_no_numbers or logits.ndim != 2:
        storage = f", {logits.layout} on {logits.device}," if holds_no_numbers else ""
        return f"gives shape {tuple(logits.shape)}{storage} {needed}"
    if logits.shape[1] != dataset.num_classes:
        names = ", ".join(dataset.class_names[:5]) + (", ..." if dataset.num_classes > 5 else "")
        return (
            f"has {logits.shape[1]} classes, the data has {dataset.num_classes} ({names}); data.class_names says how many "
            f"there are{_other_heads(logits)}"
        )
    if logits.shape[1] < 2:
        return "has one class, so no answer of it can be wrong; model.head: binary makes a no and a yes of it"
    if not logits.dtype.is_floating_point:
        return f"gives {logits.dtype}; logits are real numbers (float32)"
    if logits.isnan().any():
        return (
            f"gives NaN for sample {dataset.ids[0]}; such a model cannot be assessed: look for a "
            f"division by zero, or for weights that became NaN in training"
        )
    return ""


def _other_heads(logits: object) -> str:
    """Return what `model.head` or `model.output` would make of an answer that is no row of logits; empty where nothing."""
    if isinstance(logits, Mapping):
        return f"; model.output picks one of {', '.join(map(str, logits))}"
    if isinstance(logits, Tensor) and logits.numel() == 1:
        return "; model.head: binary reads one output as no or yes"
    return ""


def _check_output_kind(loaded: loaders.Loaded, module: torch.nn.Module, inputs: Tensor) -> None:
    """Raise UserError where outputs that are read as logits by default look like probabilities.

    A probability that is read as a logit is never below 0, so every answer would be yes.
    """
    head = loaded.head
    if head is None or head.outputs is None or head.is_output_stated:
        return
    with torch.no_grad():
        z = module(inputs)[:, 1] + head.criterion.shift
    if len(z) >= 8 and ((z >= 0) & (z <= 1)).all():
        raise UserError(
            f"model.head.output: all outputs lie in [{float(z.min()):.3g}, {float(z.max()):.3g}], as probabilities do; "
            f"set it to probability, or to logit if they are"
        )


def limit_answers(module: torch.nn.Module, trust: Trust) -> None:
    """Whatever calls the module, a library or we: an answer that never comes is told, and ends `check` or the stage."""
    what = (f"{trust.key}: the model", trust.time_limit, f"{trust.key}.time_limit")
    module.register_forward_pre_hook(partial(_asked, what))
    module.register_forward_hook(_answered, always_call=True)  # an answer that is an exception is one too


def _asked(what: tuple[str, float, str], module: torch.nn.Module, args: object) -> None:
    begin(*what)  # and look at no tensor: tracers call hooks too


def _answered(module: torch.nn.Module, args: object, output: object) -> None:
    end()


def _tried(module: torch.nn.Module, inputs: Tensor, complaint: str, advice: str, trust: Trust) -> object:
    with torch.no_grad(), trust.bounded(": the model"):
        try:
            return module(inputs)
        except (UserError, MemoryError, OutOfTimeError):
            raise
        except SystemExit as error:
            raise IncompatibleError(
                f"{trust.key}: the model called sys.exit({error.code!r}) in its forward pass"
            ) from error
        except Exception as error:  # whatever the user's model raises on inputs that do not fit it
            if _takes_channels_last(module, inputs):
                advice = f"it takes channels last: {trust.key}.preprocess: {{layout: NHWC}}"
            elif other := {
                str(p.dtype) for p in module.parameters() if p.is_floating_point() and p.dtype != inputs.dtype
            }:
                advice = f"its parameters are {', '.join(sorted(other))}, inputs {inputs.dtype}; module.float() converts them"
            raise IncompatibleError(f"{complaint} ({first_line(error)}); {advice}") from error


def _takes_channels_last(module: torch.nn.Module, inputs: Tensor) -> bool:
    """Return True if the module gives logits for images (N, C, H, W) with channels last."""
    if inputs.ndim != 4 or (isinstance(module, Preprocessed) and module.channels_last):
        return False
    try:
        return isinstance(module(inputs.permute(0, 2, 3, 1)), Tensor)
    except Exception:  # as above
        return False


def _differentiable(module: torch.nn.Module, sample: Tensor) -> bool:
    """Return True if a gradient reaches the input; whether it is useful is a sanity check.

    Logits that require a gradient are not enough: behind a quantised layer it ends there, or in an operator without derivative.
    """
    with torch.enable_grad():
        inputs = sample.clone().requires_grad_()
        logits = module(inputs)
        if not (isinstance(logits, Tensor) and logits.requires_grad):
            return False
        try:
            return torch.autograd.grad(logits.sum(), inputs, allow_unused=True)[0] is not None
        except RuntimeError as error:  # whatever else it is, an attack will say
            return "derivative" not in str(error)


def _labelled(train: Dataset | None) -> Dataset:
    if train is None:
        raise UserError("model.source: train needs a training split; give data.train_path, or import a trained model")
    if not train.labelled:
        raise UserError("model.source: train needs labels, and the training split has none; give data.train_labels")
    return train


def _required(value: str | None, key: str) -> str:
    if value is None:
        raise UserError(f"model.{key}: is required for this model.source")
    return value


def export_onnx(classifier: Classifier, path: Path) -> Path:
    """Write the classifier as ONNX (opset 13, batch of one, the graph that Marabou reads) and return the path.

    The legacy exporter: Marabou 2.0.0 does not read what torch.export's exporter writes. Raises IncompatibleError for a
    module that it cannot trace.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(1, *classifier.input_shape)
    torch._C._jit_set_onnx_log_enabled(False)  # it prints the whole graph at an exception, which is one line here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is one
        try:
            torch.onnx.export(classifier.module.cpu(), (example,), str(path), dynamo=False, opset_version=13)
        except OutOfTimeError:
            raise
        except Exception as error:  # the exporter raises many kinds for what it cannot trace
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise IncompatibleError(f"{classifier.source} cannot be exported as ONNX ({reason})") from error
    classifier.module.to(classifier.device)
    return path
