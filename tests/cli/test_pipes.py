"""A reader that leaves early, as `head` does, is no error of ours."""

import pytest
from rich.console import Console

from windtunnel.runtime.shutdown import user_errors


class Closed:
    """A pipe whose reader has left."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise OSError


def test_a_reader_that_has_left_is_not_told_of(capsys, monkeypatch):
    """Rich ends the process with `sys.exit(1)` there; nobody of the user's called it."""
    console = Console(file=Closed())  # type: ignore[arg-type]
    monkeypatch.setattr(console, "on_broken_pipe", lambda: exit_one())  # rich's own also closes the test's stdout
    with pytest.raises(SystemExit) as ended, user_errors():
        console.print("a line")
    assert ended.value.code == 1
    assert capsys.readouterr().err == ""


def exit_one() -> None:
    raise SystemExit(1)
