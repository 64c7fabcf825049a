"""Schemas of `model`: a recipe trained here, or a model of the user's."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationInfo, field_validator, model_validator

from windtunnel.core.contracts import Json
from windtunnel.core.errors import unknown_word
from windtunnel.params.entry import Block, Names, Number, OneOf, Positive, Seconds, Value, key
from windtunnel.registry.plugins import model_sources


class Recipe(Block):
    """Options by which `train` makes a classifier from the training split."""

    architecture: Literal["cnn", "mlp"] = "cnn"
    recipe: Literal["standard", "noise", "augmentation", "augmentation+noise", "adversarial"] = key(
        "standard", "augmentation: rotated, scaled, shifted and partly erased images"
    )
    patience: PositiveInt | None = key(
        None, "stop after so many epochs without a smaller loss on a tenth held out, and keep the best weights"
    )
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 64
    learning_rate: Number = Field(2e-3, gt=0)
    noise_sigma: Number = key(0.2, "noise, augmentation+noise: standard deviation of Gaussian noise", gt=0)
    epsilon: Number = key(0.1, "adversarial: Linf radius of the PGD training (Madry et al. 2018)", gt=0)
    steps: PositiveInt = key(7, "adversarial: PGD steps")

    def used(self) -> dict[str, Json]:
        """Return the parameters that this recipe reads, so that a parameter of another recipe can be refused."""
        only = {"noise_sigma": "noise", "epsilon": "adversarial", "steps": "adversarial"}
        values: dict[str, Json] = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in values.items() if only.get(key, self.recipe) in self.recipe}


class Preprocess(Block):
    """Describe what the model expects, in the order of application: channels, range, mean and std, layout."""

    layout: Literal["NCHW", "NHWC"] | None = key(
        None, "order of the dimensions; of an ONNX graph its declared shape decides where that is clear"
    )
    range: tuple[Number, Number] | None = key(
        None, "black and white: [0, 1] (the default), [0, 255] (that of uint8 graphs), [-1, 1]"
    )
    mean: tuple[Number, ...] | None = key(
        None, "a value, or one for each channel, in units of range and in the order of channels"
    )
    std: tuple[Positive, ...] | None = key(None, "as mean: (x - mean) / std")
    channels: Literal["RGB", "BGR", "gray"] = key("RGB", "gray: 0.299 R + 0.587 G + 0.114 B")

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _one_for_all_channels(cls, value: object) -> object:
        return [value] if isinstance(value, int | float | str) else value

    @property
    def value_keys(self) -> list[str]:
        """The keys among range, mean and std that change values."""
        return [key for key in ("mean", "range", "std") if getattr(self, key) is not None]

    @model_validator(mode="after")
    def _is_a_range(self) -> Preprocess:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range: {list(self.range)}: black is less than white, as in [0, 255]")
        return self


class Head(Block):
    """Describe what the outputs of the model mean and when an answer counts as correct.

    Short forms: `head: binary`, `head: {top_k: 5}`, `head: {label: smiling}`.
    """

    kind: Literal["softmax", "binary", "multi_label", "top_k"] = key(
        "softmax", "softmax: one logit a class; binary: one output; multi_label: one output a label"
    )
    output: Literal["logit", "probability"] | None = key(
        None,
        "what an output is: logit by default, of source: function probability; probabilities are turned into logits",
    )
    threshold: Number = key(0.5, "binary, multi_label: the answer is yes above this probability", gt=0, lt=1)
    top_k: PositiveInt | None = key(None, "top_k: a sample counts as correct while its label is among the k largest")
    labels: Names | None = key(None, "multi_label: the names of all outputs, in their order")
    label: str | None = key(None, "multi_label: the label that is assessed, one of labels")

    @field_validator("label", mode="before")
    @classmethod
    def _check_one_label(cls, value: object, info: ValidationInfo) -> object:
        several = value if isinstance(value, list) else ["all"] if value == "all" else []
        if several and value not in (info.data.get("labels") or []):
            raise ValueError(
                f"a run assesses one label; windtunnel sweep --set model.head.label={','.join(map(str, several))} assesses each"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: object) -> object:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, dict) and "kind" not in value:
            implied = "top_k" if "top_k" in value else "multi_label" if {"label", "labels"} & set(value) else None
            return {**value, "kind": implied} if implied else value
        return value

    @model_validator(mode="after")
    def _check_keys(self) -> Head:
        allowed = {
            "softmax": {"output"},
            "top_k": {"top_k", "output"},
            "binary": {"output", "threshold"},
            "multi_label": {"output", "threshold", "labels", "label"},
        }[self.kind]
        # Resolved entries name every key, with its default where the user gave none.
        changed = {key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default}
        if other := sorted(changed - allowed - {"kind"}):
            raise ValueError(f"{other[0]} is no key of kind: {self.kind}; {', '.join(sorted(allowed)) or 'none'}")
        if self.kind == "top_k" and self.top_k is None:
            raise ValueError("kind: top_k needs top_k, how many of the largest logits count, as in {top_k: 5}")
        if self.kind == "multi_label":
            if not self.labels or self.label is None:
                raise ValueError(
                    "kind: multi_label needs labels, the names of all outputs, and label, one of them; "
                    "windtunnel sweep --set model.head.label=all assesses each"
                )
            if self.label not in self.labels:
                raise ValueError(unknown_word("label", self.label, self.labels, what="one of labels"))
        return self


class Twin(Block):
    """A differentiable stand-in for the deployed file: gradient attacks search on it, results are of the file."""

    source: Literal["state_dict", "export", "onnx"]
    path: str = Field(description="weights, torch.export program or ONNX file")
    factory: str | None = key(None, "module:function that builds the torch module (state_dict)")
    kwargs: dict[str, Value] = key(dict, "arguments of factory")
    preprocess: Preprocess = key(Preprocess, "as model.preprocess")
    output: Literal["logit", "probability"] | None = key(
        None, "what its outputs are; where absent, what model.head.output says"
    )


class Interface(Block):
    """Limits of an interface that a predict function calls; none of them decides a result."""

    batch_size: PositiveInt | None = key(None, "most samples in a call; any number where absent")
    calls_per_second: Positive | None = key(None, "most calls a second")
    retries: Annotated[NonNegativeInt, Field(le=20)] = key(
        3, "how often a call that fails is repeated, after 0.5 s, 1 s, 2 s ...; a mistake in the code is not"
    )


_OURS = ("train", "state_dict", "export", "onnx", "mlflow", "function")
Source = Annotated[str, OneOf(*_OURS, more=partial(model_sources, _OURS))]


class Model(Block):
    """The classifier under assessment."""

    source: Source = "train"
    train: Recipe = Recipe()
    name: str | None = key(None, "torchvision, timm: the architecture; huggingface: a hub id")
    weights: str | None = key(
        None, "torchvision, timm, huggingface: pretrained (the default) or random; torchvision: the name of weights too"
    )
    path: str | None = key(None, "weights, torch.export program or ONNX file; huggingface: a folder of save_pretrained")
    factory: str | None = key(
        None, "module:function that builds the torch module (state_dict, and train in place of train.architecture)"
    )
    function: str | None = key(None, "module:function: predict(batch) -> probabilities, forward pass only")
    kwargs: dict[str, Value] = key(dict, "arguments of factory or function, or of the architecture")
    preprocess: Preprocess = key(Preprocess, "what the model expects instead of inputs in [0, 1], RGB, NCHW")
    output: str | None = key(
        None, "the name of the output to assess, where the model has several: logits of an ONNX graph or a dict"
    )
    head: Head = key(Head, "what the outputs mean: softmax, binary, multi_label, top_k")
    twin: Twin | None = key(None, "differentiable stand-in for a file without gradients (tflite, quantised onnx)")
    interface: Interface = key(Interface, "function: batch size, rate and retries of its calls")
    price: Positive | None = key(
        None, "function: price of a query (a sample), in any currency; windtunnel check prints what a run may cost"
    )
    uri: str | None = key(None, "models:/name@alias or runs:/id/model")
    sha256: str | None = key(None, "refuse weights with another digest")
    allow_pickle: bool = key(False, "mlflow, export: the file may be a pickle, which runs code; see docs/security.md")
    time_limit: Seconds = key(
        60, "seconds that windtunnel check gives the factory, and the model for an answer; a stage ten times as long"
    )

    @property
    def twin_model(self) -> Model | None:
        """The twin as a model of its own; None where there is none."""
        if self.twin is None:
            return None
        head = self.head.model_copy(update={"output": self.twin.output or self.head.output})
        keys = self.twin.model_dump(exclude_unset=True, exclude={"output"})
        return Model.model_validate({**keys, "head": head, "time_limit": self.time_limit})

    @model_validator(mode="after")
    def _check_source(self) -> Model:
        if self.interface != Interface() and self.source != "function":
            raise ValueError(f"interface: is of source: function; source: {self.source} calls nothing")
        if self.price is not None and self.source != "function":
            raise ValueError(f"price: is of source: function; source: {self.source} costs nothing")
        if self.source == "function" and self.head.kind in {"softmax", "top_k"} and self.head.output == "logit":
            raise ValueError("head.output: logit: a function with an output a class returns probabilities; remove it")
        if self.twin and self.source in {"train", "function"}:
            raise ValueError(f"twin: stands in for a deployed file, and source: {self.source} has none")
        if self.source == "train" and not self.factory and self.preprocess != Preprocess():
            raise ValueError("preprocess: windtunnel's own architectures take inputs in [0, 1]; remove it")
        return self


class OtherModel(Block):
    """A further model; its code runs only if a key here allows it."""

    model: str = Field(description="reports/model of an earlier run, or an MLflow URI")
    factory: str | None = key(None, "module:function that builds the module, where it is a state dict")
    function: str | None = key(None, "module:function, where it is a predict function")
    kwargs: dict[str, Value] = key(dict, "arguments of factory or function")
    allow_pickle: bool = key(False, "the file may be a pickle, which runs code; see docs/security.md")

    @classmethod
    def of(cls, value: str | OtherModel) -> OtherModel:
        """Return the long form of a model that may be given by its location alone."""
        return value if isinstance(value, OtherModel) else cls(model=value)
