"""Dependencies of a sweep beyond the imports of its stage."""

from windtunnel.assessments.depends import Depends
from windtunnel.params.entry import Entry

DEPENDS: Depends[Entry] = Depends(
    lambda entry, params: frozenset() if entry.library == "windtunnel" else frozenset({entry.library, "any attack"}),
    own_budget=lambda entry: True,
)
