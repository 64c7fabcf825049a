"""The one median of this project: the mean of the two middle values, and none where a middle value is censored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

NOT_REACHED = "not reached"


def median(values: Iterable[float]) -> float | None:
    """Return the median of values of which some may be censored (infinite); None for no values and where it is not reached."""
    numbers = [float(value) for value in values]
    middle = statistics.median(numbers) if numbers else math.inf
    return middle if math.isfinite(middle) else None


def median_metric(name: str, values: Iterable[float]) -> dict[str, float | str]:
    """Return the median as a metric; if it is censored, omit the number and add `<name>_status`."""
    numbers = list(values)
    middle = median(numbers)
    if middle is not None:
        return {name: middle}
    return {f"{name}_status": NOT_REACHED} if numbers else {}
