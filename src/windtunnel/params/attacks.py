"""Schema of an entry of `attacks` and of `queries`."""

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveInt

from windtunnel.core.transformations import transformation_of
from windtunnel.params.entry import Entry, EntryReference, key
from windtunnel.params.model import OtherModel
from windtunnel.params.on import On


class AttackEntry(Entry):
    """An attack of torchattacks or foolbox, an ensemble (library: windtunnel; quick, standard, exhaustive), or a function of yours."""

    draws_by_batch = True

    target_classes: int | str | list[int] | None = key(
        None, "targeted: one class, a list (one per sample), or least_likely, random, next"
    )
    restarts: PositiveInt = key(1, "runs under further seeds, each on the samples not broken yet", le=10_000)
    transfer_to: dict[str, str | OtherModel] = key(
        dict,
        "further models the examples are tried on: {name: an earlier reports/model or an MLflow URI, or {model, factory, ...}}",
    )
    invoker: str | None = key(
        None, "module:function that builds and calls the library's attack itself; see docs/attacks.md"
    )
    adapt: str | None = key(
        None, "module:function, model -> what is differentiated in its place (BPDA); see docs/attacks.md"
    )
    eot: PositiveInt = key(1, "gradients are a mean over so many draws of a randomised model (EOT)", le=10_000)
    search_precision: Literal["float32", "bfloat16"] = key(
        "float32", "of the model during the search; what counts is always evaluated in float32"
    )
    on: On | None = key(None, "run on samples that other entries left undecided, or on corrupted ones")

    def references(self) -> Iterator[EntryReference]:
        """Yield the entries that it is run after."""
        yield from self.on.every_reference() if self.on else ()

    def visualisers_by_default(self, of_family: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the family, and where squares broke samples."""
        transformation = transformation_of(self.budget.norm or "")
        return (*of_family, "SquarePlacesVisualiser") if transformation and transformation.is_square else of_family


class QueryEntry(Entry):
    """A black-box attack whose every model evaluation is counted: EvoBA, EpsGreedy, SimBA, or one of a library's."""

    library: str = "windtunnel"
    target_classes: int | str | list[int] | None = key(None, "as for attacks")
    max_queries: PositiveInt | None = key(
        None, "queries after which an image is given up; without it only the algorithm's own limit applies"
    )
    total_queries: PositiveInt | None = key(
        None, "of the whole entry; shared equally among the attacked images, so that order decides nothing"
    )
    batch_size: PositiveInt = key(256, "queries that are sent to the model together")

    @property
    def batch_size_unused(self) -> str:
        """An attack of a library is given one image at a time."""
        return "" if self.library == "windtunnel" else "each image is a call of its own"
