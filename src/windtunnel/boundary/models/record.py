"""model.json as types: what `train` keeps of a model beside its files, by its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from windtunnel.core.contracts import Caveat
from windtunnel.records.files import read_json, write_json
from windtunnel.records.metadata import Record, Value, fitting

if TYPE_CHECKING:
    from windtunnel.core.criterion import Criterion  # it imports torch, and this module is read without

MODEL_JSON = "model.json"
LIMIT = 1e-4  # of the logits' largest spread, as graphs for a verifier are held to
K = TypeVar("K", bound="ModelRecord")


class Steps(Record):
    """A preprocessing for inputs of one shape, in the order in which it is applied."""

    # (channels out, channels in) matrix of `channels`; None where the channels stay as they are
    mixing: tuple[tuple[float, ...], ...] | None = None
    # factor of each channel, after the mixing
    scale: tuple[float, ...] = (1.0,)
    # summand of each channel, after the scale
    shift: tuple[float, ...] = (0.0,)
    # True if the model takes NHWC
    channels_last: bool = False
    # False where data are tabular
    is_image: bool = True

    @property
    def changes_values(self) -> bool:
        """True if more than the layout changes."""
        return self.mixing is not None or set(self.scale) != {1.0} or set(self.shift) != {0.0}

    @property
    def label(self) -> str:
        """Name what the model expects, for messages; empty where that is inputs in [0, 1], NCHW."""
        parts = ["NHWC"] * self.channels_last + ["preprocessed"] * self.changes_values
        return ", ".join(parts)


class HeadRecord(Record):
    """`model.head` and `model.output`, as they are kept with the model."""

    kind: str
    # what an output is: logit or probability
    output: str = "logit"
    # False if params.yaml leaves that to the default
    is_output_stated: bool = True
    threshold: float = 0.5
    top_k: int = 1
    # how many outputs the model has, and which of them is assessed; None for softmax and top-k
    outputs: int | None = None
    column: int = 0
    # `model.output`
    output_name: str | None = None
    # True if the kept file of an ONNX graph gives these logits already
    is_in_file: bool = False

    @property
    def criterion(self) -> Criterion:
        """Return how logits are read under this head."""
        from windtunnel.core.criterion import Criterion

        return Criterion(self.kind, self.top_k, self.threshold)


class TwinAgreement(Record):
    """On how many of `samples` assessed samples a deployed model and its twin predict the same class."""

    agree: int
    samples: int


class ModelRecord(Record):
    """A model of any source. What the source of a library or of a plug-in keeps more is beside it."""

    source: str
    # `model.preprocess`, where it changes anything. The kept file of an ONNX graph has it inside.
    preprocess: Steps | None = None
    # `model.head`, where it is not softmax of logits, and `model.output`
    head: HeadRecord | None = None
    # of `model.twin`, where params.yaml names one
    twin: TwinAgreement | None = None

    @property
    def facts(self) -> dict[str, Value]:
        """All of it, as the source of a plug-in gave it and gets it."""
        content: dict[str, Value] = self.model_dump(mode="json")
        return content


class RecipeRecord(Record):
    """The parameters of params.yaml that a training read."""

    architecture: str | None = None
    recipe: str


class Trained(ModelRecord):
    """`source: train`. architecture: one of ours, or `factory` where the user's built the module."""

    architecture: str
    recipe: RecipeRecord
    input_shape: tuple[int, ...]
    num_classes: int


class KeptFile(ModelRecord):
    """A file of weights or a program. original: what the user calls it."""

    file: str
    sha256: str
    original: str


class StateDict(KeptFile):  # type: ignore[no-redef]  # see records.metadata.Metadata
    """`source: state_dict`. The factory here is for the reader: the one that is called is that of params.yaml."""

    factory: str = ""
    kwargs: dict[str, Value] = Field(default_factory=dict)


class UsersFunction(ModelRecord):  # type: ignore[no-redef]  # see records.metadata.Metadata
    """`source: function`. As with a factory, what is called is what params.yaml says."""

    function: str
    kwargs: dict[str, Value] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of the torch form of an ONNX graph with onnxruntime on `samples` inputs.

    difference: the largest of a logit. spread: the largest over the samples of largest less smallest logit. batch: how many
    samples the torch form takes at once; None for any number. shape: of a sample. reason: why there is no torch form; empty where there is.
    """

    by: str = ""
    difference: float = 0.0
    spread: float = 0.0
    samples: int = 0
    batch: int | None = None
    reason: str = ""
    shape: tuple[int, ...] | None = None

    @property
    def caveat(self) -> Caveat:
        """Return the caveats on gradients that are not the graph's own."""
        return Caveat(
            "converted_model",
            f"The ONNX graph runs as torch, so that attacks and bounds have gradients: on the {self.samples} "
            f"assessed samples its logits differ from onnxruntime's by at most {self.difference:.1e}, of a spread of "
            f"{self.spread:.3g} ({LIMIT:g} of that is allowed). A solver reads the graph itself.",
        )


NOT_COMPARED = Agreement(reason="its logits were not compared")


class Graph(KeptFile):
    """An ONNX graph; one that nobody compared has no torch form."""

    gradients: Agreement = NOT_COMPARED
    # `Steps.label` of what was written into the kept file
    expects: str = ""


class Fetched(Graph):
    """`source: mlflow`. uri: as params.yaml has it. run_id, model_id: what it resolved to. form: onnx, export or pickle."""

    uri: str
    form: str
    run_id: str | None = None
    model_id: str | None = None


class OfLibrary(KeptFile):
    """A network of a library, with the normalisation that is folded in (in [0, 1], a value a channel). random: its weights."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    random: bool


# A source that is not here is a library's or a plug-in's, which reads its own.
KINDS: Mapping[str, type[ModelRecord]] = {
    "train": Trained,
    "state_dict": StateDict,
    "export": KeptFile,
    "onnx": Graph,
    "function": UsersFunction,
    "mlflow": Fetched,
}


def write_model(facts: Mapping[str, object], directory: Path) -> None:
    """Write model.json. Raises UserError, in one line, for facts that are not those of their source."""
    write_json(_record(facts, f"model.source: {facts['source']}").facts, directory / MODEL_JSON)


def read_model(directory: Path) -> ModelRecord:
    """Read the record of `train` in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / MODEL_JSON
    return _record(read_json(path), str(path))


def _record(facts: object, where: str) -> ModelRecord:
    source = fitting(ModelRecord, facts, where, "what `train` wrote").source
    return fitting(KINDS.get(source, ModelRecord), facts, where, "what `train` wrote")


def narrowed(kind: type[K], record: ModelRecord) -> K:
    """Return the record as one of its kinds. Raises UserError, in one line, where it is not."""
    return record if isinstance(record, kind) else fitting(kind, record.facts, MODEL_JSON, "what `train` wrote")
