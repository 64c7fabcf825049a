"""Long work is told of: a bar on a terminal, a line now and then in a log."""

import time

from windtunnel.core import batches


def told(monkeypatch, capsys, seconds, steps=6):
    """What a log gets of `steps` steps of so many seconds each."""
    monkeypatch.setattr(batches, "TELL_EVERY", 0.02)
    with batches.progress_bar() as progress:
        task = progress.add_task("pgd", total=steps)
        for _ in range(steps):
            time.sleep(seconds)
            progress.advance(task)
    return capsys.readouterr().err.splitlines()


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    lines = told(monkeypatch, capsys, 0.011)
    assert 1 <= len(lines) <= 3
    assert all(line.startswith("pgd: ") and line.endswith(" of 6") for line in lines)


def test_quick_work_is_silent_in_a_log(monkeypatch, capsys):
    assert told(monkeypatch, capsys, 0.0) == []
