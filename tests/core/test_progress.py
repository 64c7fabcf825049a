"""Long work is told of: a bar on a terminal, a line a minute in a log."""

from windtunnel.core import batches
from windtunnel.core.executors import inside_a_unit


def told(monkeypatch, capsys, seconds, steps=6, before=0):
    """What a log gets of `steps` steps of so many seconds each, by a clock of the test's own."""
    clock = [0.0]
    monkeypatch.setattr(batches.time, "perf_counter", lambda: clock[0])
    with batches.progress_bar() as progress:
        task = progress.add_task("pgd", total=before + steps, completed=before)
        for _ in range(steps):
            clock[0] += seconds
            progress.advance(task)
    return capsys.readouterr().err.splitlines()


def test_a_log_gets_a_line_a_minute_with_the_rate_and_the_time_left(monkeypatch, capsys):
    lines = ["pgd: 2 of 6, 0.0286/s, 0:02:20 left", "pgd: 4 of 6, 0.0286/s, 0:01:10 left"]
    assert told(monkeypatch, capsys, 35.0) == [*lines, "pgd: 6 of 6, 0.0286/s, 0:00:00 left"]


def test_what_an_earlier_run_did_is_no_part_of_the_rate(monkeypatch, capsys):
    assert told(monkeypatch, capsys, 60.0, steps=2, before=100)[0] == "pgd: 101 of 102, 0.0167/s, 0:01:00 left"


def test_quick_work_is_silent_in_a_log(monkeypatch, capsys):
    assert told(monkeypatch, capsys, 1.0) == []


def test_what_is_inside_a_unit_is_silent(monkeypatch, capsys):
    with inside_a_unit():
        assert told(monkeypatch, capsys, 100.0) == []
