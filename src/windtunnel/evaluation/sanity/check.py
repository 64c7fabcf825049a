"""Define a sanity check: a registry row, a small function, and one of five statuses."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.records.files import read_json
from windtunnel.records.findings import Severity as Severity
from windtunnel.records.findings import Status as Status
from windtunnel.records.findings import Tier as Tier
from windtunnel.records.metadata import Record, fitting

if TYPE_CHECKING:
    from windtunnel.evaluation.sanity.evidence import Evidence


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Observation of a check.

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
    look: Callable[[Evidence, float], CheckResult]

    @property
    def group(self) -> str:
        """The letter of its group, A to G."""
        return self.id[0]

    @property
    def reasoning(self) -> str:
        """Why the check exists and how it is computed: the docstring of its function."""
        return inspect.getdoc(self.look) or ""


def listing(
    bad: Sequence[str],
    sentence: str,
    *,
    value: float,
    n: int,
    samples: Sequence[str] = (),
    severity: Severity | None = None,
    each: Mapping[str, str] | None = None,
) -> CheckResult:
    """Return the result of a check that finds assessments at fault: flagged where there are any, named after `sentence`."""
    reason = f"{sentence} {', '.join(bad)}"
    return CheckResult(bool(bad), value, n, samples, bad, reason, severity=severity, each=each or {})


def largest(
    values: Mapping[str, float], limit: float, sentence: str, *, n: int | None = None, samples: Sequence[str] = ()
) -> CheckResult:
    """Return the result of a check with one number per assessment: those above `limit` are at fault, the value is the largest."""
    bad = [name for name, value in values.items() if value > limit]
    each = {name: f"{sentence} {name} ({values[name]:.3g})" for name in bad}
    n_samples = len(values) if n is None else n
    return listing(bad, sentence, value=max(values.values()), n=n_samples, samples=samples, each=each)


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
) -> Callable[[Callable[[Evidence, float], CheckResult]], Callable[[Evidence, float], CheckResult]]:
    """Register a function as the check `id`. It is given the evidence and the threshold (0 where it has none).

    Raises ValueError for an id that is not a letter and a number, or is taken by a check of another module.
    """
    if not re.fullmatch(r"[A-Z][0-9]+", id):
        raise ValueError(f"sanity check '{id}': an id is a capital letter and a number, such as X1")

    def register(look: Callable[[Evidence, float], CheckResult]) -> Callable[[Evidence, float], CheckResult]:
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


def our_check(
    id: str, *, threshold: float | None = None
) -> Callable[[Callable[[Evidence, float], CheckResult]], Callable[[Evidence, float], CheckResult]]:
    """Register a function as the check `id` of checks.json; `threshold` where the code computes with it as well."""
    row = _rows()[id]
    threshold = row.threshold if threshold is None else threshold
    return check(id, row.title, row.tier, row.severity, source=row.source, remedy=row.remedy, threshold=threshold)
