"""The one plotting style: colour-blind safe, readable in grey, the same colour for the same thing everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), told apart by all common kinds of colour vision.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F"

CLEAN, ATTACKED, CERTIFIED, UNKNOWN, CORRUPTED = BLUE, VERMILION, GREEN, GREY, ORANGE
VERDICT_COLOUR = {
    "attack_succeeded": VERMILION,
    "attack_failed": SKY,
    "verified": GREEN,
    "falsified": VERMILION,
    "unknown": GREY,
    "error": PURPLE,
    "correct_under_perturbation": SKY,
    "misclassified_under_perturbation": ORANGE,
}

_SHEET = Path(__file__).with_name("windtunnel.mplstyle")


@contextmanager
def plotting_style() -> Iterator[None]:
    """Matplotlib with our style and a backend that needs no screen."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import style

    with style.context(_SHEET):
        yield


def placeholder(text: str) -> Figure:
    """A figure that says in words why there is nothing to draw; its label holds the words."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 2))
    figure.set_label(text)
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
    return figure
