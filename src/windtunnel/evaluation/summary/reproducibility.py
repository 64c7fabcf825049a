"""State what the seed decides before any attack, which assessments are randomised, and what is not controlled."""

from collections.abc import Mapping, Sequence

from windtunnel.core.contracts import Caveat, Json, Randomness
from windtunnel.core.seeds import OF_THE_RUN
from windtunnel.params.entry import Samples
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.findings import FindingRecord
from windtunnel.records.metadata import number

RANDOM_MODEL = "A2"  # the sanity check that asks the model twice


def reproducibility(
    assessments: Sequence[Artifacts],
    seed: int,
    device: str,
    findings: Sequence[FindingRecord],
    decided_by_seed: Sequence[str] = (),
) -> dict[str, Json]:
    """Return the facts of the whole run.

    Args:
        assessments: Those that the summary joins.
        seed: The run's seed.
        device: Where the model ran.
        findings: Of the sanity checks.
        decided_by_seed: What `seed` decides before any assessment, see `decisions_of_seed`.

    Returns:
        `deterministic`, `seeded`: names of the assessments that, for one model and its samples, do not or do depend on the seed.
        `decided_by_seed` as given. `not_controlled`: a phrase for everything that may differ with the same seed.
    """
    names: dict[bool, list[Json]] = {True: [], False: []}
    for artifacts in assessments:
        names[is_randomised(artifacts)].append(artifacts.name)
    loose: list[Json] = []
    if late := [a.name for a in assessments if number({"timeouts": 0, **a.metrics}, "timeouts")]:
        loose.append(f"{', '.join(late)} ran out of time for some samples, which a faster or idle machine may decide")
    if not device.startswith("cpu"):
        loose.append(
            f"sums on {device} may be rounded in another order, and the prediction of a sample near the boundary may change"
        )
    if any(row.id == RANDOM_MODEL and row.flagged for row in findings):
        loose.append(
            "the model itself gives one input different scores (sanity check A2), which no seed of ours reaches"
        )
    decided: list[Json] = [*decided_by_seed]
    return {
        "seed": seed,
        "decided_by_seed": decided,
        "deterministic": names[False],
        "seeded": names[True],
        "not_controlled": loose,
    }


def decisions_of_seed(params: Params) -> list[str]:
    """Return what the run's seed decides before any assessment, a phrase each."""
    subsets = [name for _, name, entry in entries(params) if _is_drawn(entry.samples)]
    return [
        *(["training the model"] if params.model.source == "train" else []),
        *(["splitting the digits"] if params.data.source == "digits" else []),
        *(["selecting the samples"] if _is_drawn(params.data.samples) else []),
        *(["training the generators"] if params.generators.source == "train" else []),
        *([f"selecting the subset of {_listed(subsets)}"] if subsets else []),
    ]


def reproducibility_caveat(facts: Mapping[str, Json]) -> Caveat:
    """Return the facts in words, for the report, metadata.json and MLflow."""
    keys = ("decided_by_seed", "seeded", "deterministic", "not_controlled")
    decided, seeded, same, loose = (_texts(facts.get(key)) for key in keys)
    seed = facts["seed"]
    parts = [
        f"Before any assessment, seed {seed} decides: {'; '.join(decided)}. Another seed gives other numbers."
        if decided
        else "",
        f"{_listed(seeded)} {_are(seeded)} randomised (seed {seed}); another seed may give other results."
        if seeded
        else "",
        f"{_listed(same)} {_are(same)} deterministic." if same else "",
        f"Not controlled: {'; '.join(loose)}." if loose else "Nothing else is known to differ on a second run.",
    ]
    return Caveat(OF_THE_RUN, " ".join(filter(None, parts)))


def is_randomised(artifacts: Artifacts) -> bool:
    """Return True if an assessment draws at random, so that its result depends on the seed."""
    return artifacts.metadata.semantics.randomness != Randomness.DETERMINISTIC


def _is_drawn(samples: Samples) -> bool:
    return samples.n is not None and samples.selection != "first" and samples.seed is None


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _texts(value: Json) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
