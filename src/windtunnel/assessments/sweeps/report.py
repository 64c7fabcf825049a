"""The page of a sweep in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from windtunnel.records.metadata import Metadata, number, numbers
from windtunnel.records.tables import Share, table


def print_report(metadata: Metadata, out: Console) -> None:
    """Print the rating, the curve and the histogram of critical epsilons, from the metadata.json of a sweep."""
    metrics = metadata.metrics
    epsilons, accuracies = (numbers(metrics, key) for key in ("epsilons", "accuracy_curve"))
    drop, median, never = (
        number(metrics, key) for key in ("accuracy_drop_at_median_epsilon", "median_epsilon", "never_flips")
    )
    out.print(
        f"[bold]{metadata.name}[/bold]: [bold]{metrics['verdict']}[/bold] (accuracy falls by {drop:.1%} at epsilon "
        f"{median:.4g}, the median of its epsilon grid)"
    )
    for epsilon, accuracy in zip(epsilons, accuracies, strict=True):
        out.print(f"  epsilon {epsilon:8.4g}  accuracy {accuracy:6.1%}", highlight=False)
    counts = [int(n) for n in numbers(metrics, "critical_epsilon_histogram")]
    survivors = int(number(metrics, "n_samples")) - sum(counts)
    out.print(f"critical epsilon, the smallest that flips the prediction ({never:.1%} never flip)", highlight=False)
    out.print(escape(text_histogram(counts, epsilons[-1], survivors)), highlight=False)
    for text, group in (("flip earliest", "earliest"), ("last longest", "longest")):
        if f"confidence_{group}" in metrics:
            mean = number(metrics, f"confidence_{group}")
            out.print(f"  {metrics[f'n_{group}']} {text}: mean clean confidence {mean:.1%}", highlight=False)
    out.print(f"accuracy per class at epsilon {median:.4g}, 95 % intervals", highlight=False)
    classes = table(tuple[Share, ...], metrics, "per_class_at_median_epsilon")
    for name, share in zip(metadata.kwargs.class_names, classes, strict=True):
        out.print(escape(f"  {name:>12} n {share.n:5}  {share.rate or '-'}"), highlight=False)


def text_histogram(counts: Sequence[int], largest: float, survivors: int, width: int = 40) -> str:
    """Return the histogram of critical epsilons as text, a line per bin, survivors last."""
    rows = [
        (f"{largest * i / len(counts):7.4f}-{largest * (i + 1) / len(counts):6.4f}", n) for i, n in enumerate(counts)
    ]
    rows.append((" never flips  ".rjust(14), survivors))
    top = max(1, *(n for _, n in rows))
    return "\n".join(f"{label} {'█' * round(width * n / top)} {n}" for label, n in rows)
