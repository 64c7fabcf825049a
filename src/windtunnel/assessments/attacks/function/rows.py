"""The registry row of a function of the user's. Quick to import: params.yaml is checked by it."""

from dataclasses import replace

from windtunnel.assessments.attacks.rows import AT_CALL, AttackRow, Invoker, algorithm
from windtunnel.core.contracts import Capability, Randomness, ThreatModel

ROWS: tuple[AttackRow, ...] = ()  # what there is, the user knows


def row_of(name: str) -> AttackRow:
    """Return the registry row of the function `module:function`; nothing of the user's is imported.

    White-box, the strongest that it can be, since it is handed the model; a model without gradients is handed over too.
    Its draws from the global streams are seeded.
    """
    row = algorithm("function", name, ThreatModel.WHITE_BOX, None, "custom", Randomness.GLOBAL_RNG)
    row = replace(row, requires=frozenset({Capability.FORWARD}), summary="an attack of the user's own")
    return AttackRow(row, epsilon=AT_CALL, invoker=Invoker.FUNCTION)
