"""Numbers as people write budgets: `0.1`, `1e-3`, `8/255`; read equally by DVC and by us."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer


def parse_number(value: object) -> float:
    """A float from a number or from text such as `8/255` or `1e-3`; the quotient is rounded once.

    Raises ValueError for anything else: booleans, NaN, infinities, zero denominators and other text.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number; write it as 0.03, 1e-3 or 8/255")
    try:
        numerator, *denominator = (Fraction(part.strip()) for part in str(value).split("/"))
        (divisor,) = denominator or [Fraction(1)]
        number = float(numerator / divisor)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"{value!r} is not a number; write it as 0.03, 1e-3 or 8/255") from None
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


Number = Annotated[float, BeforeValidator(parse_number), PlainSerializer(float)]
