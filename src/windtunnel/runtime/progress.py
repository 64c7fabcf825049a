"""The one progress bar of the project."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from rich import progress
from rich.console import Console
from rich.text import Text

from windtunnel.runtime.placement import PROGRESS_FILE, is_inside_a_unit

T = TypeVar("T")
TELL_EVERY = 60.0  # seconds between lines of progress where there is no terminal
_WRITE_EVERY = 0.5  # seconds between writes of the progress file


class _LoggedProgress(progress.Progress):
    """A bar on a terminal; elsewhere (a log, a scheduler) a line a minute, for work that takes long; none before a batch is done."""

    _began = _last_log = 0.0
    _before = _written = 0.0

    def add_task(self, description: str, *, total: float, completed: float = 0) -> progress.TaskID:  # type: ignore[override]
        """Add a task and start the clock of the log lines."""
        self._began = self._last_log = time.perf_counter()
        self._before = completed
        return super().add_task(description, total=total, completed=int(completed))

    def advance(self, task_id: progress.TaskID, advance: float = 1) -> None:
        """Advance the bar, and print a log line where one is due."""
        super().advance(task_id, advance)
        if is_inside_a_unit():
            return
        now, task = time.perf_counter(), self._tasks[task_id]
        completed, total, rate = (
            task.completed,
            task.total or 0.0,
            (task.completed - self._before) / (now - self._began),
        )
        if (file := os.environ.get(PROGRESS_FILE)) and now - self._written > _WRITE_EVERY:
            self._written = now
            Path(file).write_text(json.dumps({"completed": completed, "total": total, "rate": rate}))
        if self.disable and now - self._last_log >= TELL_EVERY:
            # By the clock and not by the last line, so that batches of 35 s do not make it a line every 70.
            self._last_log += (now - self._last_log) // TELL_EVERY * TELL_EVERY
            remaining = timedelta(seconds=round((total - completed) / rate)) if rate else "an unknown time"
            line = f"{task.description}: {completed:.0f} of {total:.0f}, {rate:.3g}/s, {remaining} left"
            print(line, file=sys.stderr, flush=True)

    def track(self, sequence: Sequence[T], *, description: str) -> Iterator[T]:  # type: ignore[override]
        """Iterate with progress; rich's own `track` prints nothing where no bar is drawn."""
        task = self.add_task(description, total=len(sequence))
        for value in sequence:
            yield value
            self.advance(task)


class _RateColumn(progress.ProgressColumn):
    """Samples a second, over all workers."""

    def render(self, task: progress.Task) -> Text:
        return Text(f"{task.speed:.3g}/s" if task.speed else "", style="progress.data.speed")


def progress_bar() -> _LoggedProgress:
    """Return the one progress bar of the project: name, bar, samples done, rate, time left; a line a minute where there is no terminal.

    Silent inside a unit, whose progress is that of the whole.
    """
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        _RateColumn(),
        progress.TimeRemainingColumn(),
    )
    silent = is_inside_a_unit() or not sys.stderr.isatty()
    return _LoggedProgress(*columns, transient=True, disable=silent, console=Console(stderr=True))
