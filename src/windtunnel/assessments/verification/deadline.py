"""When the time of an assessment is over, told to any process. Imports no torch: solver processes import this."""

import time


class Deadline:
    """A time.monotonic() at which something is over, in whatever process it is asked: that clock is of one machine."""

    def __init__(self, monotonic: float) -> None:
        self._at = time.time() + monotonic - time.monotonic()

    def here(self) -> float:
        """Return the deadline in terms of time.monotonic() of this process; inf for none."""
        return time.monotonic() + self._at - time.time()
