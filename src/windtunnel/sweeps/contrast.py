"""Two sweeps of the same samples: whose curve falls more slowly, and on how many samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windtunnel.core.artifacts import Artifacts, read_artifacts
from windtunnel.core.bootstrap import bootstrap_means, percentile_interval
from windtunnel.core.errors import UserError
from windtunnel.sweeps.curve import area_under_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two sweeps over one menu on the same N samples, the second against the first.

    epsilons: (E,). accuracies: cumulative, (2, E). areas: normalised areas under the curves. difference: second minus
    first, `low` and `high` its 95 % interval (paired bootstrap over samples). later, earlier: samples whose critical
    epsilon is larger, or smaller, in the second; a sample that never flips counts as largest.
    """

    epsilons: Tensor
    accuracies: Tensor
    areas: tuple[float, float]
    difference: float
    low: float
    high: float
    later: int
    earlier: int


def contrast(first: Path, second: Path) -> Contrast:
    """Compare two sweep directories, `reports/robustness/<name>` of two runs.

    Raises UserError where one is no sweep, or where samples or menus differ: nothing would be paired.
    """
    one, two = (_read_sweep(directory) for directory in (first, second))
    same = one.sample_names == two.sample_names and all(
        torch.equal(one.tensor(key), two.tensor(key)) for key in ("clean_inputs", "targets")
    )
    if not same:
        raise UserError(f"{second}: swept other samples than {first}; sweep both on the same")
    epsilons = one.tensor("epsilons")
    if not torch.equal(epsilons, two.tensor("epsilons")):
        raise UserError(f"{second}: has another menu of epsilons than {first}; sweep both over the same")
    correct = torch.stack([(a.tensor("sweep_predictions") == a.tensor("targets")).cummin(0).values for a in (one, two)])
    areas = torch.stack([area_under_curve(epsilons, rows) for rows in correct])
    gain = (areas[1] - areas[0])[None].numpy()
    before, after = (a.tensor("critical_epsilon") for a in (one, two))
    return Contrast(
        epsilons,
        correct.double().mean(2),
        (float(areas[0].mean()), float(areas[1].mean())),
        float(gain.mean()),
        *percentile_interval(bootstrap_means(gain)[:, 0]),
        later=int((after > before).sum()),
        earlier=int((after < before).sum()),
    )


def contrast_figure(found: Contrast, labels: tuple[str, str]) -> Figure:
    """The two curves, the area between them shaded; `labels` name the first and the second sweep."""
    from matplotlib import pyplot

    from windtunnel.visualisers import style

    figure, axes = pyplot.subplots(figsize=(6.5, 4))
    epsilons, (first, second) = found.epsilons.numpy(), found.accuracies.numpy()
    axes.fill_between(epsilons, first, second, color=style.GREY, alpha=0.2, linewidth=0)
    for label, curve, colour, marker, area in zip(
        labels, (first, second), (style.ATTACKED, style.BLUE), ("o-", "s--"), found.areas, strict=True
    ):
        axes.plot(epsilons, curve, marker, color=colour, label=f"{label}: area {area:.3f}")
    axes.set(
        xlabel="epsilon",
        ylabel="top-1 accuracy",
        ylim=(0, 1.02),
        title=f"difference of the areas {found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]",
    )
    axes.legend(title=f"flips later on {found.later} samples, earlier on {found.earlier}", title_fontsize=9)
    return figure


def _read_sweep(directory: Path) -> Artifacts:
    artifacts = read_artifacts(directory)
    if "sweep_predictions" not in artifacts.data:
        raise UserError(f"{directory}: is no sweep (no sweep_predictions in its robustness_data.pt)")
    return artifacts
