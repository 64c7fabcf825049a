"""Long work is told of: a bar on a terminal, a line a minute in a log."""

import re
import time
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.batches import batches_of
from windtunnel.params.model import Recipe
from windtunnel.runtime import progress as progress_module
from windtunnel.runtime.batch_runner import run_batches
from windtunnel.runtime.placement import VARIABLE, inside_a_unit

_LINE = re.compile(r"([\w .-]+): (\d+) of (\d+), ([\d.e-]+)/s, (\d+):(\d\d):(\d\d) left")


def _clock(monkeypatch, seconds):
    """Each look at the clock of the lines is so many seconds after the one before: one for each batch that is done."""
    looks = count()
    monkeypatch.setattr(
        progress_module, "time", SimpleNamespace(perf_counter=lambda: seconds * next(looks), monotonic=time.monotonic)
    )


def told(monkeypatch, capsys, seconds, steps=6, before=0):
    """What a log gets of `steps` steps of so many seconds each, by a clock of the test's own."""
    clock = [0.0]
    monkeypatch.setattr(progress_module.time, "perf_counter", lambda: clock[0])
    with progress_module.progress_bar() as progress:
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


def doubled(batch):
    return {"x": 2 * batch.indices}


@pytest.mark.parametrize(
    ("asked", "seconds"), [("here", 3.6), ("here", 36.0), pytest.param("processes:2", 36.0, marks=pytest.mark.slow)]
)
def test_an_hour_of_work_is_sixty_lines_over_all_workers(monkeypatch, capfd, tmp_path, asked, seconds):
    """None twice, and none of a worker's own; the rate is that of all workers, and time left becomes less."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, asked)
    _clock(monkeypatch, seconds)
    n = round(3600 / seconds)
    run_batches(batches_of(torch.arange(2 * n), 2, 0, "pgd"), doubled, name="pgd")
    lines = [_LINE.fullmatch(line) for line in capfd.readouterr().err.splitlines()]
    assert all(lines), lines
    assert 58 <= len(lines) <= 60
    done = [int(line[2]) for line in lines]
    assert done == sorted(set(done))
    assert {(line[1], line[3]) for line in lines} == {("pgd", str(2 * n))}
    assert [float(line[4]) for line in lines] == [pytest.approx(2 / seconds, rel=0.01)] * len(lines)
    left = [3600 * int(line[5]) + 60 * int(line[6]) + int(line[7]) for line in lines]
    assert left == [pytest.approx(seconds * (2 * n - samples) / 2, abs=1) for samples in done]


def test_training_is_told_of_too(monkeypatch, capfd, digits):
    """An epoch of 70 seconds each: a line for each."""
    _, train = digits
    _clock(monkeypatch, 70.0)
    train_classifier(Recipe(architecture="mlp", epochs=3), train.subset(torch.arange(64)), 0, torch.device("cpu"))
    assert [line.partition(",")[0] for line in capfd.readouterr().err.splitlines()] == [
        f"train standard mlp: {epoch} of 3" for epoch in (1, 2, 3)
    ]
