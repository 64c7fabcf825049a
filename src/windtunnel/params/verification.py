"""Schema of an entry of `verification`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from windtunnel.params.entry import Block, Entry, EntryReference, Number, Seconds, key
from windtunnel.params.on import On

_FINEST = 1e-6  # of the largest radius: radii are float32, and no search would end


class Radius(Block):
    """The search for the largest certified epsilon of each sample."""

    max: Number = Field(gt=0, description="the largest epsilon that is tried")
    tolerance: Number = Field(gt=0, description="how near the search comes to the largest provable epsilon")
    attack: bool = key(True, "Linf: search the smallest epsilon that PGD breaks too, the other side")
    method: str | None = key(
        None,
        "step that searches: by default the last that gives bounds; branch-and-bound goes on from there, minutes a sample",
    )

    @model_validator(mode="after")
    def _order(self) -> Radius:
        if self.tolerance >= self.max:
            raise ValueError(f"tolerance ({self.tolerance:g}) must be smaller than max ({self.max:g})")
        if self.tolerance < _FINEST * self.max:
            raise ValueError(f"tolerance ({self.tolerance:g}) must be at least a millionth of max ({self.max:g})")
        return self


class ParameterSplits(Block):
    """`params` of library: transformations."""

    domains: PositiveInt = key(2000, "parts of the region that are bounded, for each sample")
    verified_range: bool = key(
        False, "search the largest verified part of the region of broken samples too, from the identity outwards"
    )


class Smoothing(Block):
    """`params` of algorithm: smoothing, named as in Cohen et al. 2019."""

    sigma: Number = key(0.25, "standard deviation of the noise, on [0, 1] pixels", gt=0)
    n0: PositiveInt = key(100, "noisy copies that choose the class")
    n: PositiveInt = key(10_000, "noisy copies that certify it")
    alpha: Number = key(0.001, "chance that a certificate is wrong, for each sample", gt=0, lt=1)
    sequential: bool = Field(
        default=False,
        description="end the copies of a sample when they decide whether its radius reaches epsilon; n is then the most",
    )


class BranchAndBound(Block):
    """`params` of algorithm: branch-and-bound, and of the cascade for its step of that name: limits of work, not of time."""

    domains: PositiveInt | None = key(
        None,
        "subdomains of one sample, after which it stays undecided; by default 20000 without a timeout, else no limit",
    )
    iterations: PositiveInt = key(8, "steps of optimisation for each subdomain")
    batch: PositiveInt = key(128, "subdomains that are split together")
    memory: PositiveInt = key(1024, "MiB of bounds at work, and of open subdomains beyond which it goes deep")


_OWN_STEP = {
    "Marabou": "marabou",
    "windtunnel": "branch-and-bound",
    "transformations": "branch-and-bound",
}  # of the verifiers that are no cascade
_WITHOUT_BOUNDS = frozenset({"quick-attack", "attack", "branch-and-bound", "marabou"})  # of the logits
SOLVER_TIMEOUT = 20.0  # seconds: Marabou counts no work
DOMAINS, UNLIMITED_DOMAINS = 20_000, 2**62  # subdomains of one sample, without and with a timeout


class VerificationEntry(Entry):
    """Formal verification by auto-LiRPA, branch and bound, Marabou, a cascade of them, or randomised smoothing."""

    batch_is_a_unit = False

    batch_size: PositiveInt = key(
        256, "most samples bounded together; fewer where the layers are large or memory is short"
    )
    timeout: Seconds | None = key(
        None,
        "seconds for one sample, over all steps; without it Marabou has 20, and branch-and-bound is limited by its work; "
        "branch-and-bound has as many again for a radius",
    )
    time_budget: Seconds | None = key(None, "seconds for the whole assessment")
    other_classes: Literal["together", "one_by_one"] = key(
        "together", "Marabou: all other classes in one disjunction, or a query for each, the nearest first"
    )
    output_bounds: bool = key(False, "Marabou: bound every logit by bisection; hundreds of queries a sample")
    steps: tuple[str, ...] = key(
        ("quick-attack", "ibp", "crown", "attack", "branch-and-bound", "marabou"),
        "cascade: which methods, cheapest first",
        min_length=1,
    )
    radius: Radius | None = key(None, "certified epsilon of each sample: {max: ..., tolerance: ...}")
    examples_from: tuple[str, ...] = key((), "cascade: attacks whose examples falsify; see docs/verification.md")

    on: On | None = key(None, "run on samples that other entries left undecided, or on corrupted ones")

    def references(self) -> Iterator[EntryReference]:
        """Yield the entries that it is run after, and the attacks whose examples falsify."""
        yield from self.on.every_reference() if self.on else ()
        for name in self.examples_from:
            yield EntryReference("examples_from", "attacks", name)

    @property
    def solver_timeout(self) -> float:
        """Seconds that Marabou has for one sample."""
        return float(self.timeout or SOLVER_TIMEOUT)

    @property
    def branch_and_bound(self) -> BranchAndBound:
        """Limits of branch and bound: where the entry has a `timeout` and no `domains`, time alone ends a search."""
        limits = BranchAndBound.model_validate(self.params)
        default = DOMAINS if self.timeout is None else UNLIMITED_DOMAINS
        return limits.model_copy(update={"domains": limits.domains or default})

    @property
    def batch_size_unused(self) -> str:
        """Solvers and smoothing take one sample at a time, and bounds never more than suit the network."""
        return "" if self.library == "auto-LiRPA" else "samples are decided one at a time"

    @property
    def takes_minutes_a_sample(self) -> bool:
        """True where a sample has a time limit, and where its radius is searched by branch and bound."""
        searching = self.radius and (self.radius.method or self.algorithm).startswith("branch-and-bound")
        return self.timeout is not None or bool(searching)

    def visualisers_by_default(self, of_family: tuple[str, ...]) -> tuple[str, ...]:
        """Return the figures that the requested results allow."""
        if self.algorithm == "smoothing":
            return ("VerdictSummaryVisualiser", "CertifiedCurveVisualiser")
        steps = self.steps if self.algorithm == "cascade" else (_OWN_STEP.get(self.library, "bounds"),)
        if _WITHOUT_BOUNDS.issuperset(steps) and not (self.output_bounds and "marabou" in steps):
            of_family = tuple(name for name in of_family if not name.startswith("OutputBounds"))
        decided = ("DecidedByVisualiser",) if self.algorithm == "cascade" else ()
        return (
            *of_family,
            *decided,
            *(("CertifiedCurveVisualiser",) if self.radius or self.library == "transformations" else ()),
        )
