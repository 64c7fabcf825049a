"""Colours, told apart by all common kinds of colour vision and readable in grey: the same colour for the same thing everywhere."""

from __future__ import annotations

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY = "#CC79A7", "#56B4E9"

CLEAN, ATTACKED, CERTIFIED, CORRUPTED = BLUE, VERMILION, GREEN, ORANGE
BLUES = ("#f2f6fb", "#dbe7f4", "#c0d6ec", "#9cc2e2", "#72a9d4", "#4a8ec4", "#2a72b0", "#145596", "#0a3a72")


def ramp(cmap: str, steps: int = 11) -> tuple[str, ...]:
    """Colours #rrggbb at equal steps of one of matplotlib's colour maps. Raises ValueError, naming some, for an unknown one."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if cmap not in colormaps:
        raise ValueError(f"cmap: '{cmap}' is no colour map of matplotlib, such as cividis, viridis, RdBu_r")
    return tuple(to_hex(colormaps[cmap](i / (steps - 1))) for i in range(steps))
