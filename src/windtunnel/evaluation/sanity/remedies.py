"""Propose `attacks` entries that settle a flagged check, on the survivors of the flagged attacks."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict

from windtunnel.core.contracts import Json
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.findings import FindingRecord

STANDINS = "windtunnel.assessments.attacks.standins"


class Remedy(TypedDict, total=False):
    """An entry of `attacks` as it is written into params.yaml."""

    library: str
    algorithm: str
    params: dict[str, Json]
    budget: dict[str, Json]
    invoker: str
    eot: int
    on: dict[str, list[str]]


Make = Callable[[str, float], Remedy]


def _pgd(norm: str, epsilon: float, steps: int = 100) -> Remedy:
    return {
        "library": "torchattacks",
        "algorithm": "PGD" if norm == "Linf" else "PGDL2",
        "budget": {"steps": steps, "step_size": round(epsilon / 10, 8)},
    }


_APGD: Remedy = {"library": "torchattacks", "algorithm": "APGD"}
KINDS: dict[str, Make] = {  # kind: entry under a norm at an epsilon
    "more_steps": lambda norm, epsilon: {**_APGD, "params": {"n_restarts": 3}, "budget": {"steps": 200}},
    "other_loss": lambda norm, epsilon: {**_APGD, "params": {"loss": "dlr", "n_restarts": 3}, "budget": {"steps": 100}},
    "black_box": lambda norm, epsilon: {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 2000}},
    "bpda": lambda norm, epsilon: {**_pgd(norm, epsilon), "invoker": f"{STANDINS}:bpda"},
    "transfer": lambda norm, epsilon: {**_pgd(norm, epsilon, 20), "invoker": f"{STANDINS}:transfer"},
    "adaptive": lambda norm, epsilon: {"library": "windtunnel", "algorithm": "adaptive", "params": {"standard": False}},
    "eot": lambda norm, epsilon: {**_pgd(norm, epsilon, 20), "eot": 20},
}
MASKED = ("adaptive", "black_box", "bpda", "transfer")
REMEDIES: dict[str, tuple[str, ...]] = {
    "A2": ("adaptive", "eot"), "A12": MASKED, "A13": MASKED, "A14": MASKED, "A24": MASKED,
    "C1": ("other_loss", *MASKED), "C3": MASKED, "C4": ("more_steps",), "C7": MASKED, "C8": MASKED,
    "C9": MASKED,
    "C11": MASKED, "C12": ("more_steps",), "C13": ("adaptive", "eot", "black_box"), "C14": ("other_loss",), "C15": ("adaptive", "eot"),
    "C18": ("more_steps",), "C20": ("black_box",), "C24": MASKED,
    "D1": ("more_steps",), "D2": ("more_steps",), "D3": ("more_steps",), "D4": ("more_steps",), "D5": ("more_steps",),
    "D6": ("more_steps",), "D13": ("more_steps",),
    "D12": MASKED, "D15": ("more_steps", *MASKED),
}  # fmt: skip


def stronger(
    findings: Iterable[FindingRecord], attacks: Mapping[str, AttackEntry], budget: Budget, head: str = "softmax"
) -> dict[str, Remedy]:
    """Return entries of `attacks` by name that settle the flagged checks, each on the survivors at that budget.

    A check that names no attack is about all of them. A kind is there once for a budget, and not where it is in params already.
    The two classes of a binary or multi-label `head` have one loss: DLR is not defined for them.
    """
    entries: dict[str, Remedy] = {}
    prior_attacks: dict[str, dict[str, None]] = {}  # whose survivors each entry is run on, in order
    for row in findings:
        if not row.flagged:
            continue
        names = [name for name in row.assessments if name in attacks]
        for region, region_names in _by_budget(names or list(attacks), attacks, budget).items():
            for kind in REMEDIES.get(row.id, ()):
                if kind == "other_loss" and head in ("binary", "multi_label"):
                    continue
                name = f"{kind}_{region[0].lower()}_{region[1]:.4g}".replace(".", "_")
                if name in attacks:
                    continue
                entries.setdefault(name, _entry(kind, region, budget))
                prior_attacks.setdefault(name, {}).update(dict.fromkeys(region_names))
    return {name: {**entry, "on": {"survivors_of": [*prior_attacks[name]]}} for name, entry in entries.items()}


def _by_budget(
    names: Iterable[str], attacks: Mapping[str, AttackEntry], budget: Budget
) -> dict[tuple[str, float], list[str]]:
    """Return the untargeted attacks by (norm, epsilon), the budget they are run at; Linf and L2, where the remedies work."""
    groups: dict[tuple[str, float], list[str]] = {}
    for name in names:
        at, is_untargeted = attacks[name].budget.over(budget), attacks[name].target_classes is None
        if is_untargeted and not attacks[name].corrupted_by and at.epsilon is not None and at.norm in ("Linf", "L2"):
            groups.setdefault((at.norm.value, at.epsilon), []).append(name)
    return groups


def _entry(kind: str, region: tuple[str, float], budget: Budget) -> Remedy:
    norm, epsilon = region
    settings = KINDS[kind](norm, epsilon)
    is_global = (norm, epsilon) == (budget.norm.value, budget.epsilon)
    differs: dict[str, Json] = {} if is_global else {"norm": norm, "epsilon": epsilon}
    return {**settings, "budget": {**differs, **settings.get("budget", {})}}
