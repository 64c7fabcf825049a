"""The sanity checks: a registry row and a small function each."""

CONTROL_LIBRARY = "torchattacks"  # whose PGD the positive control is attacked by
