"""Numbers and values of the artifacts in the words of the report."""

from collections.abc import Mapping, Sequence

from windtunnel.core.contracts import Json
from windtunnel.core.transformations import budget_text
from windtunnel.records import metadata
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import Metrics, Region, rate, severities_of

NBSP = "\N{NO-BREAK SPACE}"


def number(metrics: Metrics, key: str) -> float:
    """Return a number; 0 where it is missing."""
    return 0.0 if metrics.get(key) is None else metadata.number(metrics, key)


def percent(metrics: Metrics, key: str) -> str:
    """`66.0% [59.0%, 72.5%]`; `-` where the rate is missing."""
    return str(rate(metrics, key) or "-")


def bracket(limits: tuple[float, float] | None) -> str:
    """` [59.0%, 72.5%]`, or nothing."""
    return f" [{limits[0]:.1%}, {limits[1]:.1%}]" if limits else ""


def interval(ends: tuple[float, float] | None, form: str) -> str:
    """`[59.0%, 72.5%]` of the format `.1%`; empty where there is none."""
    return f"[{ends[0]:{form}}, {ends[1]:{form}}]" if ends else ""


def with_interval(value: float, ends: tuple[float, float] | None, form: str) -> str:
    """`66.0% [59.0%, 72.5%]` of the format `.1%`."""
    return f"{value:{form}} {interval(ends, form)}".strip()


def short(value: Json, limit: int = 80) -> str:
    """Any JSON value on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {short(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(short(v) for v in value[:10]) + (", ..." if len(value) > 10 else "")
    text = "" if value is None else str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def prediction_name(names: list[str], index: int) -> str:
    """Return the name of a predicted class; -1 stands for logits that are not finite."""
    return class_name(names, index) if index >= 0 else "a prediction that is not finite"


def region(artifacts: Artifacts) -> Region:
    """Return the perturbation region of an assessment."""
    return artifacts.metadata.semantics.perturbation


def region_words(artifacts: Artifacts) -> str:
    """Return the region of an assessment: `Linf ≤ 0.06`, `L2, no bound`, `fog at severity 3`, `common, mean of severities 1, 3, 5`."""
    where = region(artifacts)
    if where.norm is not None:
        limits = f"{where.norm}, no bound" if where.epsilon is None else budget_text(where.norm, where.epsilon)
        return limits + where.around
    name = where.corruption_name or "-"
    if suite := mean_over(artifacts):
        return f"{name}, {suite}"
    severity = where.severity or next(iter(where.severities or ()), None)
    return name + (f" at severity {severity}" if severity else "")


def mean_over(artifacts: Artifacts) -> str:
    """Over what the accuracies of a suite are means: `mean of severities 1, 3, 5`; empty where it ran one severity alone."""
    severities = severities_of(artifacts.metadata.kwargs)
    return f"mean of severities {', '.join(map(str, severities))}" if len(severities) > 1 else ""


def points(change: float) -> str:
    """Return a difference of two shares: `-3.0 points`, which is not a change by 3 per cent."""
    return f"{100 * change:+.1f} points"


def kwargs(artifacts: Artifacts) -> Mapping[str, Json]:
    """Return the options of an assessment."""
    return artifacts.metadata.kwargs.model_dump(mode="json")


def class_name(names: list[str], index: int) -> str:
    """Return the name of a class; its number where it has no name."""
    return names[index] if 0 <= index < len(names) else str(index)


def clean_words(artifacts: Artifacts, index: int) -> str:
    """Return the label of a sample, and the clean prediction where it is another."""
    label, predicted = (
        class_name(artifacts.class_names, int(artifacts.tensor(key)[index])) for key in ("targets", "clean_predictions")
    )
    return label if label == predicted else f"{label}, predicted {predicted}"
