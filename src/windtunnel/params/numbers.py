"""Numbers as people write budgets: `0.1`, `1e-3`, `8/255`; read equally by DVC and by us."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from windtunnel.core.errors import shown

MAX_CHARACTERS, MAX_EXPONENT = 200, 400  # doubles end at 1e308
_EXPONENT = re.compile(r"[eE][+-]?0*([\d_]+)")


def parse_number(value: object) -> float:
    """Return a float from a number or from text such as `8/255` or `1e-3`; the quotient is rounded once.

    Raises ValueError for anything else: booleans, NaN, infinities, zero denominators and other text.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        text = str(value)  # a ValueError for an integer of more than 4300 digits
        if len(text) > MAX_CHARACTERS or any(
            len(e) > 3 or int(e.strip("_") or 0) > MAX_EXPONENT for e in _EXPONENT.findall(text)
        ):
            raise ValueError  # Fraction writes all digits out: 1e999999999 would take hours
        numerator, *denominator = (Fraction(part.strip()) for part in text.split("/"))
        (divisor,) = denominator or [Fraction(1)]
        number = float(numerator / divisor)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"{shown(value)} is not a number; write it as 0.03, 1e-3 or 8/255") from None
    if not math.isfinite(number):
        raise ValueError(f"{shown(value)} is not a finite number")
    return number


Number = Annotated[float, BeforeValidator(parse_number), PlainSerializer(float)]

MAX_SECONDS = 1e8  # three years; timers of Python and of the system overflow at some more
Seconds = Annotated[Number, Field(gt=0, le=MAX_SECONDS)]
