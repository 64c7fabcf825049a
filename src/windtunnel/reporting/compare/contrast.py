"""Two sweeps of the same samples in one picture: whose curve falls more slowly, and on how many samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.core.artifacts import read_artifacts
from windtunnel.core.errors import UserError
from windtunnel.reporting.compare.curves import CurveDifference
from windtunnel.reporting.compare.paired import compare_assessment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two sweeps over one grid on the same samples, the second against the first.

    curves: both accuracies at each epsilon, and the areas (`curves.overall`) with the interval of their difference.
    later, earlier: samples whose critical epsilon is larger, or smaller, in the second; one that never flips counts as
    largest.
    """

    curves: CurveDifference
    later: int
    earlier: int


def contrast(first: Path, second: Path) -> Contrast:
    """Compare two sweep directories, `reports/robustness/<name>` of two runs.

    Raises UserError where one is no sweep, or where samples or grids differ: nothing would be paired.
    """
    one, two = (read_artifacts(directory) for directory in (first, second))
    for artifacts in (one, two):
        if "critical_epsilon" not in artifacts.data:
            raise UserError(f"{artifacts.directory}: is no sweep (no critical_epsilon in its robustness_data.pt)")
    (pair,) = compare_assessment(str(second), one, two)
    if pair.curve is None:
        raise UserError(f"{second}: has another epsilon grid than {first}; sweep both over the same")
    before, after = one.tensor("critical_epsilon"), two.tensor("critical_epsilon")
    return Contrast(pair.curve, int((after > before).sum()), int((after < before).sum()))


def contrast_figure(found: Contrast, labels: tuple[str, str]) -> Figure:
    """The two curves, the area between them shaded; `labels` name the first and the second sweep."""
    from matplotlib import pyplot

    from windtunnel.assessments.figures import style

    figure, axes = pyplot.subplots(figsize=(6.5, 4))
    points, whole = found.curves.points, found.curves.overall
    epsilons = [float(point.at) for point in points]
    first, second = [point.first for point in points], [point.second for point in points]
    axes.fill_between(epsilons, first, second, color=style.GREY, alpha=0.2, linewidth=0)
    axes.plot(epsilons, first, "o-", color=style.ATTACKED, label=f"{labels[0]}: area {whole.first:.3f}")
    axes.plot(epsilons, second, "s--", color=style.BLUE, label=f"{labels[1]}: area {whole.second:.3f}")
    gain = whole.second - whole.first
    axes.set(
        xlabel="epsilon",
        ylabel="top-1 accuracy",
        ylim=(0, 1.02),
        title=f"difference of the areas {gain:+.3f} [{whole.low:+.3f}, {whole.high:+.3f}]",
    )
    axes.legend(title=f"flips later on {found.later} samples, earlier on {found.earlier}", title_fontsize=9)
    return figure
