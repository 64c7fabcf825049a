"""Schema of an entry of `verification`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from windtunnel.params.entry import Entry
from windtunnel.params.numbers import Number

Step = Literal["attack", "ibp", "crown-ibp", "crown", "alpha-crown", "marabou"]


class VerificationEntry(Entry):
    """Formal verification by auto-LiRPA, Marabou, or a cascade of them."""

    batch_size: PositiveInt = Field(
        20, description="samples bounded together; small batches are faster with sparse bounds"
    )
    timeout: Number = Field(20, gt=0, description="Marabou, cascade: seconds for one sample")
    time_budget: Number | None = Field(
        None, gt=0, description="Marabou, cascade: seconds for all solver calls together"
    )
    workers: PositiveInt = Field(2, description="Marabou, cascade: solver processes at a time")
    steps: tuple[Step, ...] = Field(
        ("attack", "ibp", "crown-ibp", "crown", "marabou"), description="cascade: which methods, cheapest first"
    )
