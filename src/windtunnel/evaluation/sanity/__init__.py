"""The sanity checks: a registry row and a small function each."""

CONTROL_LIBRARY = "torchattacks"  # whose PGD the positive control is attacked by


class NotApplicable(Exception):
    """Raised by a check that does not apply to this run, with the reason."""


class NotRun(Exception):
    """Raised by a check that applies but lacks its data, with the reason."""
