"""Expand an entry of params.yaml into its runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from windtunnel.assessments.attacks.profiles import LITERAL, STANDARD, profile_members
from windtunnel.assessments.attacks.rows import AttackRow, Invoker
from windtunnel.assessments.attacks.settings import Settings, members_of, settle
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core.contracts import PerturbationBudget, ThreatModel
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.attacks import AttackEntry

if TYPE_CHECKING:
    from windtunnel.assessments.attacks.adaptive.surrogates import GradientRemedy


@dataclass(frozen=True, slots=True)
class PlannedAttack:
    """One attack on the survivors: its registry row and its arguments. Runs of one name differ in their seed alone.

    remedy: changes to the derivative of the model that it attacks; None where it attacks the model as it is.
    """

    name: str
    row: AttackRow
    settings: Settings
    remedy: GradientRemedy | None = None


def plan_of(
    where: str,
    entry: AttackEntry,
    row: AttackRow,
    budget: PerturbationBudget,
    num_classes: int,
    *,
    has_gradients: bool = True,
) -> list[PlannedAttack]:
    """Return the runs of `entry`, in order, on a model of `num_classes` competing classes; without gradients, those that need none.

    Raises UserError for parameters or a budget that cannot be.
    """
    if not row.is_ensemble:
        run = PlannedAttack(row.algorithm.name, row, settle(where, row, entry.params, budget))
        _check_attacks(where, row, run)
        return [run] * entry.restarts
    settings = settle(where, row, entry.params, budget).effective if row.defaults else entry.params
    if entry.params and not row.defaults:
        name = next(iter(entry.params))
        raise UserError(
            f"{where}.params.{name}: the profile {row.algorithm.name} has no parameters; name its attacks one by one"
        )
    if budget.steps or budget.step_size:
        raise UserError(
            f"{where}.budget: the profile {row.algorithm.name} chooses its steps; set norm and epsilon only"
        )
    if settings.get(STANDARD) is False:
        return []
    plain = replace(budget, steps=None, step_size=None)
    runs = []
    for member in profile_members(row.algorithm.name, budget.norm, num_classes, literal=bool(settings.get(LITERAL))):
        member_row = ROWS[member.library, member.algorithm]
        if not has_gradients and member_row.algorithm.threat_model is ThreatModel.WHITE_BOX:
            continue
        runs.append(PlannedAttack(member.name, member_row, settle(where, member_row, member.params, plain)))
    return runs * entry.restarts


def _check_attacks(where: str, row: AttackRow, run: PlannedAttack) -> None:
    """MultiAttack: the attacks it wraps must be of its library, take the budget's epsilon and work under Linf."""
    if row.invoker is not Invoker.MANY_ATTACKS:
        return
    fitting = [
        r.algorithm.name
        for r in ROWS.values()
        if r.algorithm.library == row.algorithm.library
        and r.epsilon
        and r.algorithm.norm is row.algorithm.norm
        and r.invoker in (Invoker.PLAIN, Invoker.ANY_DISTANCE)
        and not r.three_channels
    ]
    members = members_of(run.settings.effective["attacks"])
    if len(members) < 2:
        raise UserError(
            f"{where}.params.attacks: name at least two attacks, for example [FGSM, PGD] or [FGSM, {{PGD: {{steps: 20}}}}]"
        )
    for name, params in members:
        if name not in fitting:
            raise UserError(unknown_word(f"{where}.params.attacks", name, fitting, what="an attack it can wrap"))
        settle(where, ROWS[row.algorithm.library, name], params, run.settings.budget, f"params.attacks.{name}")
