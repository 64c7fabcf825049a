"""Schema of an entry of `verification`."""

from __future__ import annotations

from windtunnel.params.entry import Entry


class VerificationEntry(Entry):
    """Formal verification by auto-LiRPA, Marabou, or a cascade of them."""
