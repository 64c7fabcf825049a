"""Two sweeps of the same samples in one picture: whose curve falls more slowly, and on how many samples."""

from dataclasses import dataclass
from pathlib import Path

from windtunnel.assessments.figures.plots import WIDTH, Series, lines
from windtunnel.assessments.figures.scene import Scene
from windtunnel.core.errors import UserError
from windtunnel.records.artifacts import read_artifacts
from windtunnel.reporting.compare.comparison import CurveDifference, compare_assessment


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
    first_artifacts, two = (read_artifacts(directory) for directory in (first, second))
    for artifacts in (first_artifacts, two):
        if "critical_epsilon" not in artifacts.data:
            raise UserError(f"{artifacts.directory}: is no sweep (no critical_epsilon in its robustness_data.pt)")
    (pair,) = compare_assessment(str(second), first_artifacts, two)
    if pair.curve is None:
        raise UserError(f"{second}: has another epsilon grid than {first}; sweep both over the same")
    before, after = first_artifacts.tensor("critical_epsilon"), two.tensor("critical_epsilon")
    return Contrast(pair.curve, int((after > before).sum()), int((after < before).sum()))


def contrast_chart(contrast_data: Contrast, labels: tuple[str, str]) -> Scene:
    """Return the two curves; `labels` name the first and the second sweep. `windtunnel.assessments.figures.paint` writes it as a PNG."""
    points, overall = contrast_data.curves.points, contrast_data.curves.overall
    first = tuple((float(point.at), point.first) for point in points)
    second = tuple((float(point.at), point.second) for point in points)
    drawn = [
        Series(f"{labels[0]}: area {overall.first:.3f}", "broken", first),
        Series(f"{labels[1]}: area {overall.second:.3f}", "clean", second, dashed=True),
    ]
    gain = f"{labels[1]} flips later on {contrast_data.later} samples, earlier on {contrast_data.earlier}"
    area = f"difference of the areas {overall.second - overall.first:+.3f} [{overall.low:+.3f}, {overall.high:+.3f}]"
    return lines(drawn, f"epsilon; {gain}", "top-1 accuracy", f"{area}; {gain}.", width=WIDTH)
