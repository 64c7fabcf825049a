"""Dependencies of a query-counted attack beyond the imports of its stage."""

from windtunnel.assessments.depends import Depends
from windtunnel.params.entry import Entry

DEPENDS: Depends[Entry] = Depends(
    lambda entry, params: frozenset({entry.library} - {"windtunnel"}),
    own_budget=lambda entry: entry.library == "windtunnel",
)
