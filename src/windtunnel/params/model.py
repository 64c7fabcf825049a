"""Schemas of `model`: a recipe trained here, or a model of the user's."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from windtunnel.core.contracts import Json
from windtunnel.core.errors import unknown_word
from windtunnel.params.entry import Block, OneOf, Value
from windtunnel.params.numbers import Number, Seconds
from windtunnel.registry.plugins import model_sources


class Recipe(Block):
    """Options by which `train` makes a classifier from the training split."""

    architecture: Literal["cnn", "mlp"] = "cnn"
    recipe: Literal["standard", "noise", "augmentation", "augmentation+noise", "adversarial"] = Field(
        "standard", description="augmentation: rotated, scaled, shifted and partly erased images"
    )
    patience: PositiveInt | None = Field(
        None,
        description="stop after so many epochs without a smaller loss on a tenth held out, and keep the best weights",
    )
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 64
    learning_rate: Number = Field(2e-3, gt=0)
    noise_sigma: Number = Field(
        0.2, gt=0, description="noise, augmentation+noise: standard deviation of Gaussian noise"
    )
    epsilon: Number = Field(0.1, gt=0, description="adversarial: Linf radius of the PGD training (Madry et al. 2018)")
    steps: PositiveInt = Field(7, description="adversarial: PGD steps")

    def used(self) -> dict[str, Json]:
        """Return the parameters that this recipe reads, so that a parameter of another recipe can be refused."""
        only = {"noise_sigma": "noise", "epsilon": "adversarial", "steps": "adversarial"}
        values: dict[str, Json] = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in values.items() if only.get(key, self.recipe) in self.recipe}


class Preprocess(Block):
    """Describe what the model expects, in the order of application: channels, range, mean and std, layout."""

    layout: Literal["NCHW", "NHWC"] | None = Field(
        None, description="order of the dimensions; of an ONNX graph its declared shape decides where that is clear"
    )
    range: tuple[Number, Number] | None = Field(
        None, description="black and white: [0, 1] (the default), [0, 255] (that of uint8 graphs), [-1, 1]"
    )
    mean: tuple[Number, ...] | None = Field(
        None, description="a value, or one for each channel, in units of range and in the order of channels"
    )
    std: tuple[Annotated[Number, Field(gt=0)], ...] | None = Field(None, description="as mean: (x - mean) / std")
    channels: Literal["RGB", "BGR", "gray"] = Field("RGB", description="gray: 0.299 R + 0.587 G + 0.114 B")

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

    kind: Literal["softmax", "binary", "multi_label", "top_k"] = Field(
        "softmax", description="softmax: one logit a class; binary: one output; multi_label: one output a label"
    )
    output: Literal["logit", "probability"] | None = Field(
        None,
        description="what an output is: logit by default, of source: function probability; probabilities are turned into logits",
    )
    threshold: Number = Field(
        0.5, gt=0, lt=1, description="binary, multi_label: the answer is yes above this probability"
    )
    top_k: PositiveInt | None = Field(
        None, description="top_k: a sample counts as correct while its label is among the k largest"
    )
    labels: list[str] | None = Field(None, description="multi_label: the names of all outputs, in their order")
    label: str | None = Field(None, description="multi_label: the label that is assessed, one of labels")

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
                raise ValueError("kind: multi_label needs labels, the names of all outputs, and label, one of them")
            if self.label not in self.labels:
                raise ValueError(unknown_word("label", self.label, self.labels, what="one of labels"))
        return self


class Twin(Block):
    """A differentiable stand-in for the deployed file: gradient attacks search on it, results are of the file."""

    source: Literal["state_dict", "export", "onnx"]
    path: str = Field(description="weights, torch.export program or ONNX file")
    factory: str | None = Field(None, description="module:function that builds the torch module (state_dict)")
    kwargs: dict[str, Value] = Field(default_factory=dict, description="arguments of factory")
    preprocess: Preprocess = Field(default_factory=Preprocess, description="as model.preprocess")
    output: Literal["logit", "probability"] | None = Field(
        None, description="what its outputs are; where absent, what model.head.output says"
    )


class Interface(Block):
    """Limits of an interface that a predict function calls; none of them decides a result."""

    batch_size: PositiveInt | None = Field(None, description="most samples in a call; any number where absent")
    calls_per_second: Annotated[Number, Field(gt=0)] | None = Field(None, description="most calls a second")
    retries: Annotated[NonNegativeInt, Field(le=20)] = Field(
        3,
        description="how often a call that fails is repeated, after 0.5 s, 1 s, 2 s ...; a mistake in the code is not",
    )


_OURS = ("train", "state_dict", "export", "onnx", "mlflow", "function")
Source = Annotated[str, OneOf(*_OURS, more=partial(model_sources, _OURS))]


class Model(Block):
    """The classifier under assessment."""

    source: Source = "train"
    train: Recipe = Recipe()
    name: str | None = Field(None, description="torchvision, timm: the architecture; huggingface: a hub id")
    weights: str | None = Field(
        None,
        description="torchvision, timm, huggingface: pretrained (the default) or random; torchvision: the name of weights too",
    )
    path: str | None = Field(
        None, description="weights, torch.export program or ONNX file; huggingface: a folder of save_pretrained"
    )
    factory: str | None = Field(
        None,
        description="module:function that builds the torch module (state_dict, and train in place of train.architecture)",
    )
    function: str | None = Field(
        None, description="module:function: predict(batch) -> probabilities, forward pass only"
    )
    kwargs: dict[str, Value] = Field(
        default_factory=dict, description="arguments of factory or function, or of the architecture"
    )
    preprocess: Preprocess = Field(
        default_factory=Preprocess, description="what the model expects instead of inputs in [0, 1], RGB, NCHW"
    )
    output: str | None = Field(
        None,
        description="the name of the output to assess, where the model has several: logits of an ONNX graph or a dict",
    )
    head: Head = Field(default_factory=Head, description="what the outputs mean: softmax, binary, multi_label, top_k")
    twin: Twin | None = Field(
        None, description="differentiable stand-in for a file without gradients (tflite, quantised onnx)"
    )
    interface: Interface = Field(
        default_factory=Interface, description="function: batch size, rate and retries of its calls"
    )
    price: Annotated[Number, Field(gt=0)] | None = Field(
        None,
        description="function: price of a query (a sample), in any currency; windtunnel check prints what a run may cost",
    )
    uri: str | None = Field(None, description="models:/name@alias or runs:/id/model")
    sha256: str | None = Field(None, description="refuse weights with another digest")
    allow_pickle: bool = Field(
        False, description="mlflow, export: the file may be a pickle, which runs code; see docs/security.md"
    )
    time_limit: Seconds = Field(
        60,
        description="seconds that windtunnel check gives the factory, and the model for an answer; a stage ten times as long",
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
    factory: str | None = Field(None, description="module:function that builds the module, where it is a state dict")
    function: str | None = Field(None, description="module:function, where it is a predict function")
    kwargs: dict[str, Value] = Field(default_factory=dict, description="arguments of factory or function")
    allow_pickle: bool = Field(False, description="the file may be a pickle, which runs code; see docs/security.md")

    @classmethod
    def of(cls, value: str | OtherModel) -> OtherModel:
        """Return the long form of a model that may be given by its location alone."""
        return value if isinstance(value, OtherModel) else cls(model=value)
