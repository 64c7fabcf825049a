"""params.yaml as a schema: the one description of every key, and the documentation of it."""

import functools
import re
from types import GenericAlias
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model

from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.attacks import AttackEntry, QueryEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.data import Data
from windtunnel.params.entry import Block, Budget, Storage, key
from windtunnel.params.latent import Generators, LatentEntry
from windtunnel.params.model import Model
from windtunnel.params.results import Clean, Gate, Report, Sanity, Tracking
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry
from windtunnel.registry.plugins import families, own_module

DEVICES = ("auto", "cpu", "cuda", "xpu", "mps")
RESERVED_NAMES = frozenset({"clean", "summary", "sanity"})


_LONGEST_NAME = 100


def _assessment_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"'{name}' is not a name: letters, digits, - and _ only (it becomes a directory)")
    if len(name) > _LONGEST_NAME:
        raise ValueError(
            f"'{name[:40]}...' has {len(name)} characters; a name has {_LONGEST_NAME} at most (it becomes a directory)"
        )
    if name in RESERVED_NAMES:
        raise ValueError(f"'{name}' is reserved; choose another name")
    return name


def _device(name: str) -> str:
    kind, colon, number = name.partition(":")
    if kind not in DEVICES:
        raise ValueError(unknown_word("device", name, DEVICES, what="a device").removeprefix("device: "))
    if colon and (kind in {"auto", "cpu"} or not number.isdecimal()):
        raise ValueError(f"'{name}' is not a device; a number follows cuda, xpu or mps alone, as in cuda:1")
    return name


Device = Annotated[str, AfterValidator(_device)]
Name = Annotated[str, AfterValidator(_assessment_name)]


class Params(Block):
    """params.yaml."""

    seed: int = key(0, "run seed; every unit of work derives its own from it", ge=0)
    device: Device = key("auto", "auto, cpu, cuda, xpu or mps, with a number where there are several: cuda:1")
    data: Data
    model: Model
    budget: Budget
    budgets: dict[str, Budget] = key(dict, "named budgets: budget: ${budgets.tight}")
    storage: Storage = Storage()
    clean: Clean = Clean()
    attacks: dict[Name, AttackEntry] = Field(default_factory=dict)
    queries: dict[Name, QueryEntry] = Field(default_factory=dict)
    sweeps: dict[Name, SweepEntry] = Field(default_factory=dict)
    verification: dict[Name, VerificationEntry] = Field(default_factory=dict)
    corruptions: dict[Name, CorruptionEntry] = Field(default_factory=dict)
    generators: Generators = Generators()
    latent: dict[Name, LatentEntry] = Field(default_factory=dict)
    sanity: Sanity = Sanity()
    report: Report = Report()
    tracking: Tracking = Tracking()
    gate: Gate = Gate()


@functools.cache
def params_model() -> type[Params]:
    """Params, with a key for each family that a plug-in brings."""
    added = {name: family for name, family in families().items() if not own_module(name, "family")}
    if duplicates := [name for name in added if name in Params.model_fields]:
        raise UserError(f"plug-in: a family cannot be called '{duplicates[0]}', which is a key of params.yaml already")
    if not added:
        return Params
    maps = {name: GenericAlias(dict, (Name, family.entry_type)) for name, family in added.items()}
    fields: dict[str, Any] = {name: (kind, Field(default_factory=dict)) for name, kind in maps.items()}
    return create_model("Params", __base__=Params, **fields)
