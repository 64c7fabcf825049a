"""The page of a sweep in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from windtunnel.core.artifacts import Artifacts
from windtunnel.sweeps.curve import text_histogram


def print_report(artifacts: Artifacts, console: Console | None = None) -> None:
    """Print the verdict, the curve and the histogram of critical epsilons."""
    out, metrics = console or Console(), artifacts.metrics
    epsilons, accuracies, counts = (
        metrics[key] for key in ("epsilons", "accuracy_curve", "critical_epsilon_histogram")
    )
    assert isinstance(epsilons, list)
    assert isinstance(accuracies, list)
    assert isinstance(counts, list)
    drop = float(str(metrics["accuracy_drop_at_median_epsilon"]))
    out.print(
        f"[bold]{artifacts.name}[/bold]: [bold]{metrics['verdict']}[/bold] (accuracy falls by {drop:.1%} at epsilon "
        f"{float(str(metrics['median_epsilon'])):.4g}, the median of the menu)"
    )
    for epsilon, accuracy in zip(epsilons, accuracies, strict=True):
        out.print(f"  epsilon {float(str(epsilon)):8.4g}  accuracy {float(str(accuracy)):6.1%}", highlight=False)
    survivors = int((~artifacts.tensor("critical_epsilon").isfinite()).sum())
    largest = float(str(epsilons[-1]))
    out.print(escape(text_histogram([int(str(c)) for c in counts], largest, survivors)), highlight=False)
