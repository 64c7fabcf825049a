"""Define a sanity check: a registry row, a small function, and one of five statuses."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from windtunnel.evaluation.sanity import NotApplicable as NotApplicable
from windtunnel.evaluation.sanity import NotRun as NotRun
from windtunnel.records.files import read_json
from windtunnel.records.findings import Severity as Severity
from windtunnel.records.findings import Status as Status
from windtunnel.records.findings import Tier as Tier
from windtunnel.records.metadata import Record, fitting

if TYPE_CHECKING:
    from windtunnel.evaluation.sanity.evidence import Evidence


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Observation of a check: of the whole run, or of one of the assessments, pairs or budgets that `folded` puts together.

    `reason`, `samples`, `assessments` and `severity` (where it differs from the row's) are about what is wrong and are
    kept only where the check flagged; `note` is kept always. `each` holds, by name, the reason of one assessment, where
    `reason` speaks of the worst of them: as a caveat of that one, the number of another would be wrong.
    """

    flagged: bool
    value: float | None = None
    n: int | None = None
    samples: Sequence[str] = ()
    assessments: Sequence[str] = ()
    reason: str = ""
    note: str = ""
    severity: Severity | None = None
    each: Mapping[str, str] = field(default_factory=dict)


Look: TypeAlias = "Callable[[Evidence, float], CheckResult]"
Observe: TypeAlias = "Callable[[Evidence, float], CheckResult | Iterator[CheckResult]]"


@dataclass(frozen=True, slots=True)
class Check:
    """One registry row. `id` is stable; `threshold` is the default of `sanity.thresholds.<id>`, None where it has none."""

    id: str
    title: str
    tier: Tier
    severity: Severity
    source: str
    remedy: str
    threshold: float | None
    look: Look

    @property
    def group(self) -> str:
        """The letter of its group, A to G."""
        return self.id[0]

    @property
    def reasoning(self) -> str:
        """Why the check exists and how it is computed: the docstring of its function."""
        return inspect.getdoc(self.look) or ""


def total(values: Sequence[float]) -> float:
    """Return the sum of the values."""
    return sum(values)


def folded(
    results: Iterable[CheckResult],
    sentence: str = "",
    *,
    none: str = "",
    value: Callable[[Sequence[float]], float] | None = max,
    n: Callable[[Sequence[int]], int] = sum,
) -> CheckResult:
    """Return one result for the observations of a check, with the assessments and samples of those that flagged.

    Args:
        results: an observation each; its `n` is 1 where it has none.
        sentence: the reason, with {names}, {count} of the samples, {value} or {named}, each name with its reason; the reasons of the
            flagged observations where it is empty.
        none: the reason why the check does not apply without observations; where it is empty, such a check passes.
        value: value of the check from those of the observations; the number of samples where it is None.
        n: n of the check from those of the observations.
    """
    observed = list(results)
    assert not any(result.severity or result.note or result.each for result in observed), (
        "the row and the fold say these"
    )
    if none and not observed:
        raise NotApplicable(none)
    bad = [result for result in observed if result.flagged]
    names = [name for result in bad for name in result.assessments]
    samples = [sample for result in bad for sample in result.samples]
    values = [result.value for result in observed if result.value is not None]
    number = len(samples) if value is None else value(values) if values else 0.0
    each = {name: result.reason for result in bad for name in result.assessments if result.reason}
    named = "; ".join(f"{name}: {reason}" for name, reason in each.items())
    texts = {"names": ", ".join(names), "count": len(samples), "value": number, "named": named}
    reason = sentence.format(**texts) if sentence else "; ".join(dict.fromkeys(result.reason for result in bad))
    n_samples = n([1 if result.n is None else result.n for result in observed]) if observed else 0
    return CheckResult(bool(bad), number, n_samples, samples, names, reason, each=each)


def listing(
    bad: Sequence[str], sentence: str, *, value: float, n: int, severity: Severity | None = None
) -> CheckResult:
    """Return the result of a check that finds assessments at fault: flagged where there are any, named after `sentence`."""
    return CheckResult(bool(bad), value, n, (), bad, f"{sentence} {', '.join(bad)}", severity=severity)


def largest(values: Mapping[str, float], limit: float, sentence: str, *, n: int | None = None) -> CheckResult:
    """Return the result of a check with one number per assessment: those above `limit` are at fault, the value is the largest."""
    bad = [name for name, value in values.items() if value > limit]
    each = {name: f"{sentence} {name} ({values[name]:.3g})" for name in bad}
    result = listing(bad, sentence, value=max(values.values()), n=len(values) if n is None else n)
    return replace(result, each=each)


GROUPS = {
    "A": "Pre-flight: model and input",
    "B": "Post-conditions of an attack",
    "C": "Gradient masking and obfuscation",
    "D": "Strength and convergence of attacks",
    "E": "Attacks, certificates and statistics against each other",
    "F": "Statistics and reporting",
    "G": "Provenance",
}
PLUGINS = "Plug-ins"  # the group of every other letter
CHECKS: dict[str, Check] = {}


def check(
    id: str, title: str, tier: Tier, severity: Severity, *, source: str, remedy: str, threshold: float | None = None
) -> Callable[[Look], Look]:
    """Register a function as the check `id`. It is given the evidence and the threshold (0 where it has none).

    Raises ValueError for an id that is not a letter and a number, or is taken by a check of another module.
    """
    if not re.fullmatch(r"[A-Z][0-9]+", id):
        raise ValueError(f"sanity check '{id}': an id is a capital letter and a number, such as X1")

    def register(look: Look) -> Look:
        if id in CHECKS and CHECKS[id].look.__module__ != look.__module__:
            raise ValueError(f"sanity check '{id}' of {look.__module__} is taken by {CHECKS[id].look.__module__}")
        CHECKS[id] = Check(id, title, tier, severity, source, remedy, threshold, look)
        return look

    return register


class _CheckRow(Record):
    title: str
    tier: Tier
    severity: Severity
    source: str
    remedy: str
    threshold: int | float | None = None  # as it is written: findings repeat it


class _Rows(Record):
    checks: dict[str, _CheckRow]


@functools.cache
def _rows() -> dict[str, _CheckRow]:
    file = Path(__file__).with_name("checks.json")
    return fitting(_Rows, read_json(file), str(file), "the sanity checks").checks


def our_check(id: str, sentence: str = "", *, threshold: float | None = None, **fold: Any) -> Callable[[Observe], Look]:
    """Register a function as the check `id` of checks.json; `threshold` where the code computes with it as well.

    What it yields assessment by assessment is `folded` with `sentence` and the options `fold`.
    """
    row = _rows()[id]
    threshold = row.threshold if threshold is None else threshold
    register = check(id, row.title, row.tier, row.severity, source=row.source, remedy=row.remedy, threshold=threshold)

    def wrapped(observe: Observe) -> Look:
        @functools.wraps(observe)
        def look(evidence: Evidence, limit: float) -> CheckResult:
            result = observe(evidence, limit)
            return result if isinstance(result, CheckResult) else folded(result, sentence, **fold)

        return register(look)

    return wrapped
