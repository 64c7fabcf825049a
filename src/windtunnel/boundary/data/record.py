"""dataset.json as a type: what `prepare` did to make the assessed samples, and who they are."""

from pathlib import Path

from windtunnel.records.files import read_json
from windtunnel.records.metadata import Record, Value, fitting

DATASET_JSON = "dataset.json"


_FROM = {"folder": "a folder", "npz": "an .npz", "npy": ".npy files", "idx": "an idx file", "function": "a function"}


def origin_of(source: str) -> str:
    """Return a source of samples in words that follow them: `of digits`, `from a folder`."""
    return f"from {_FROM[source]}" if source in _FROM else f"of {source}"


class DatasetRecord(Record):
    """The samples beside their tensors. What else a data function of the user's says of them is kept.

    samples: how they were chosen of the source. n_train: 0 where there is no training split. shape: of one sample.
    digest: `Dataset.digest()`.
    """

    source: str | None = None
    value_range_of_source: tuple[float, float] | None = None
    crop: Value = None
    channels: int | None = None
    resize: tuple[int, int] | None = None
    resize_method: str | None = None
    prepared_by: str | None = None
    samples: dict[str, Value] | None = None
    n: int
    n_train: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    labelled: bool
    value_range: tuple[float, float]
    digest: str
    ids: tuple[str, ...]

    @property
    def prepared(self) -> dict[str, Value]:
        """Return how the data were prepared, for the metadata of an assessment: without who the samples are."""
        content: dict[str, Value] = self.model_dump(
            mode="json", exclude={"ids", "class_names", "labelled", "value_range", "digest"}
        )
        return content


def read_record(directory: Path) -> DatasetRecord:
    """Read the record of `prepare` in `directory`. Raises UserError, in one line, where it is missing or does not fit."""
    path = directory / DATASET_JSON
    return fitting(DatasetRecord, read_json(path), str(path), "what `prepare` wrote")
