"""Long work is told of: a bar on a terminal, a line now and then in a log."""

from windtunnel.core import batches


def told(monkeypatch, capsys, seconds, steps=6):
    """What a log gets of `steps` steps of so many seconds each, by a clock of the test's own."""
    clock = [0.0]
    monkeypatch.setattr(batches.time, "perf_counter", lambda: clock[0])
    with batches.progress_bar() as progress:
        task = progress.add_task("pgd", total=steps)
        for _ in range(steps):
            clock[0] += seconds
            progress.advance(task)
    return capsys.readouterr().err.splitlines()


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    assert told(monkeypatch, capsys, 11.0) == ["pgd: 3 of 6", "pgd: 5 of 6"]


def test_quick_work_is_silent_in_a_log(monkeypatch, capsys):
    assert told(monkeypatch, capsys, 1.0) == []
