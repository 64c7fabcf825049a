"""What of a run comes out equal on a second run, what the seed decides, and what nobody controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import Caveat, Json, Randomness
from windtunnel.core.findings import FindingRecord
from windtunnel.core.metadata import number

RANDOM_MODEL = "A2"  # the sanity check that asks the model twice


def reproducibility(
    assessments: Sequence[Artifacts], seed: int, device: str, findings: Sequence[FindingRecord]
) -> dict[str, Json]:
    """Facts of the whole run.

    `deterministic`, `seeded`: names of the assessments that two seeds cannot, or can, tell apart; all that draw are
    seeded from `seed`. `not_controlled`: a sentence for everything that may differ on a second run with the same seed;
    empty where nothing is known to.
    """
    names: dict[bool, list[Json]] = {True: [], False: []}
    for artifacts in assessments:
        names[_draws(artifacts)].append(artifacts.name)
    loose: list[Json] = []
    if late := [a.name for a in assessments if number({"timeouts": 0, **a.metrics}, "timeouts")]:
        loose.append(f"{', '.join(late)} ran out of time for some samples, which a faster or idle machine may decide")
    if not device.startswith("cpu"):
        loose.append(f"sums on {device} may be rounded in another order, and a sample at the boundary may turn")
    if any(row.id == RANDOM_MODEL and row.flagged for row in findings):
        loose.append(
            "the model itself gives one input different scores (sanity check A2), which no seed of ours reaches"
        )
    return {"seed": seed, "deterministic": names[False], "seeded": names[True], "not_controlled": loose}


def reproducibility_caveat(facts: Mapping[str, Json]) -> Caveat:
    """The same in words, for the report, metadata.json and MLflow."""
    seeded, same, loose = (_texts(facts[key]) for key in ("seeded", "deterministic", "not_controlled"))
    drawn = (
        f"Drawn at random, from seed {facts['seed']}, and others with another seed: {', '.join(seeded)}."
        if seeded
        else "Nothing draws at random: every seed gives these numbers."
    )
    fixed = f" The same with every seed: {', '.join(same)}." if same else ""
    rest = f" Not controlled: {'; '.join(loose)}." if loose else " Nothing else is known to differ on a second run."
    return Caveat("reproducibility", f"{drawn}{fixed}{rest}")


def _texts(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _draws(artifacts: Artifacts) -> bool:
    return artifacts.metadata.semantics.randomness != Randomness.DETERMINISTIC
