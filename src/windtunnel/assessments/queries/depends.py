"""What a query-counted attack depends on beside what its stage imports."""

from __future__ import annotations

from windtunnel.assessments.depends import Depends
from windtunnel.params.entry import Entry

DEPENDS: Depends[Entry] = Depends(
    lambda entry, params: frozenset({entry.library} - {"windtunnel"}),
    own_budget=lambda entry: entry.library == "windtunnel",
)
