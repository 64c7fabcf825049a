"""The result of an assessment before it is written, and the tensors of robustness_data.pt by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from windtunnel.core.contracts import Caveat, Json, Semantics
from windtunnel.core.errors import unknown_word
from windtunnel.records.metadata import Failure

# What robustness_data.pt may hold: tensors, and dictionaries of tensors (`output_bounds`).
Tensors = dict[str, "Tensor | dict[str, Tensor]"]


def tensor_in(data: Mapping[str, Tensor | dict[str, Tensor]], key: str) -> Tensor:
    """Return the tensor under `key`. Raises KeyError, with the names that there are, where there is none."""
    if key not in data:
        raise KeyError(
            unknown_word("tensor", str(key), sorted(data), what="a tensor of this assessment", most=len(data))
        )
    value = data[key]
    if not isinstance(value, Tensor):
        raise KeyError(f"'{key}' holds tensors by name and is none")
    return value


def tensors_in(data: Mapping[str, Tensor | dict[str, Tensor]], key: str) -> dict[str, Tensor]:
    """Return the tensors below `key`, by name. Raises KeyError where there are none."""
    value = data[key]
    if isinstance(value, Tensor):
        raise KeyError(f"'{key}' is a tensor and holds none by name")
    return value


def plain_tensors(data: Mapping[str, Tensor | dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors that are not in a dictionary of tensors."""
    return {key: value for key, value in data.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True)
class AssessmentResult:
    """Result of one assessment, before it is written.

    `data` is the content of robustness_data.pt; `metrics` holds plain numbers and lists of numbers, unused ones
    omitted; `library_package` is the distribution whose version is recorded; `kwargs` are the assessor's own options and
    `call_kwargs` what the library was called with (tensors are summarised on writing); `family` is the key of params.yaml
    that the entry stands under, empty for what is no entry; `draws`: of how many random runs the numbers are the worst case.
    `pictured`: bool (N,), whose images are known at all: those that an earlier assessment dropped are not; None for all.
    `failure`: why the entry failed at run time, None where it did not.
    """

    name: str
    semantics: Semantics
    data: Tensors = field(repr=False)
    metrics: dict[str, Json]
    caveats: tuple[Caveat, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    call_kwargs: Mapping[str, object] = field(default_factory=dict, repr=False)
    library_package: str | None = None
    provenance: Mapping[str, Json] = field(default_factory=dict)
    family: str = ""
    draws: int = 1
    pictured: Tensor | None = field(default=None, repr=False)
    failure: Failure | None = None
