"""Two runs on the same samples: which held in one and not in the other, and whether chance explains it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import binomtest
from torch import Tensor

from windtunnel.core.artifacts import Artifacts, read_artifacts
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import UserError

_HELD = (Verdict.ATTACK_FAILED, Verdict.VERIFIED, Verdict.CORRECT_UNDER_PERTURBATION)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One assessment in two runs. Rates are fractions in [0, 1] of `n` paired samples; `p_value` is McNemar's."""

    name: str
    n: int
    first: float
    second: float
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    p_value: float
    same_protocol: bool


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact p-value that flips either way are equally likely; 1 where nothing flipped.

    Source: McNemar 1947, doi:10.1007/BF02295996, with the binomial distribution in place of its limit.
    """
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def held(artifacts: Artifacts) -> Tensor:
    """Bool (N,): classified rightly, and neither broken nor left open by this assessment."""
    verdicts = artifacts.tensor("verdicts")
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    return right & torch.isin(verdicts, torch.tensor([int(v) for v in _HELD]))


def compare_runs(first: Path, second: Path) -> list[Comparison]:
    """Every assessment that two directories `reports/` share, in the order of their names.

    Raises UserError where they share none, or where a name stands for other samples in the two.
    """
    names = [_names(run) for run in (first, second)]
    shared = sorted(names[0] & names[1])
    if not shared:
        raise UserError(f"compare: {first} and {second} share no assessment")
    return [_compare(name, first, second) for name in shared]


def _names(run: Path) -> set[str]:
    found = {path.parent.name for path in (run / "robustness").glob("*/metadata.json")}
    if not found:
        raise UserError(f"compare: {run} is no directory of results (no robustness/*/metadata.json)")
    return found


def _compare(name: str, first: Path, second: Path) -> Comparison:
    one, two = (read_artifacts(run / "robustness" / name) for run in (first, second))
    # Paired statistics on other samples would look right and mean nothing, so names alone are not trusted.
    same = one.sample_names == two.sample_names and all(
        torch.equal(one.tensor(key), two.tensor(key)) for key in ("clean_inputs", "targets")
    )
    if not same:
        raise UserError(
            f"compare: {name} was assessed on other samples in {second} than in {first}; assess both on the same"
        )
    before, after = held(one), held(two)
    ids = one.sample_names
    gained = tuple(ids[int(i)] for i in (after & ~before).nonzero())
    lost = tuple(ids[int(i)] for i in (before & ~after).nonzero())
    protocol = [[a.metadata[key] for key in ("library", "algorithm", "semantics", "call_kwargs")] for a in (one, two)]
    rates = [float(rows.double().mean()) if len(rows) else 0.0 for rows in (before, after)]
    p_value = mcnemar_exact(len(gained), len(lost))
    return Comparison(name, len(ids), rates[0], rates[1], gained, lost, p_value, protocol[0] == protocol[1])
