"""The cache follows what decides a result: a constant of a room that decides re-runs dependents, one of another room nothing."""

import re
import shutil
from pathlib import Path

import pytest

import windtunnel
from windtunnel.evaluation.validate import validated_params
from windtunnel.operations.resolve.build import Resolver
from windtunnel.operations.resolve.closure import Memory

ROOT = Path(__file__).parents[3]
# A file, one constant in it, and a stage that must run again when the constant changes.
DECIDING = [
    ("core/classifier.py", "FORWARD_BATCH = 512", "attack@pgd"),
    ("core/batches.py", 'HALVED = "halved"', "attack@pgd"),
    ("core/threads.py", 'VARIABLE = "OMP_NUM_THREADS"', "attack@pgd"),
    ("registry/plugins.py", 'ASSESSMENTS = "windtunnel.assessments"', "attack@pgd"),
    ("records/artifacts.py", "_PROVENANCE_PACKAGES = (", "attack@pgd"),
    ("boundary/limits.py", "MEMORY_SHARE = 0.8", "train"),
    ("params/data.py", "from functools import partial", "prepare"),
    ("assessments/attacks/family.py", "order = 10", "summary"),
    ("assessments/attacks/evaluate.py", "from dataclasses import dataclass", "attack@pgd"),
    ("evaluation/sanity/run.py", "from pathlib import Path", "sanity"),
]
SCHEDULING = [
    ("runtime/credentials.py", "_SHORTEST = 4"),
    ("runtime/executors/dispatcher.py", "START_LIMIT = 300.0"),
    ("runtime/executors/ray_cluster.py", "_STARTS = "),
    ("runtime/progress.py", "TELL_EVERY = 60.0"),
    ("runtime/batch_runner.py", "WORTH_KEEPING = 1.0"),
    ("runtime/stage_log.py", "_DIRECTORIES = {"),
    ("runtime/shutdown.py", "GRACE = 5.0"),
    ("runtime/supervised.py", "STAGE_FACTOR = 10"),
    ("assessments/attacks/preflight.py", "MOST_STARTS = 1_000"),
    ("assessments/queries/preflight.py", "from windtunnel.core.dataset import Dataset"),
    ("assessments/verification/preflight.py", "TRY_SECONDS = 3.0"),
    ("cli/show.py", "from pathlib import Path"),
]


class Copy:
    """A copy of the package, and the digests that its stages resolve to."""

    def __init__(self, folder):
        self.package = folder / "windtunnel"
        shutil.copytree(ROOT / "src" / "windtunnel", self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.memory = folder / "memory.json"

    def digests(self):
        memory = Memory(self.memory)
        stages = list(Resolver(validated_params(ROOT / "params.yaml"), memory, ROOT).stages())
        memory.keep()
        return {stage.label: stage.work.code for stage in stages}

    def change(self, file, line):
        path = self.package / file
        text = path.read_text()
        assert line in text, f"{file} has no {line!r} any more"
        path.write_text(f"{text}\n\nCHANGED = 1\n" if line.startswith("from ") else _changed(text, line))


def _changed(text, line):
    """Change the value in `line`: another digit, or another letter of its text."""
    start = text.index(line)
    end = text.index("\n", start)
    row = text[start:end]
    name, value = row.split(" = ", 1)
    other = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1)
    other = f'("changed", {value[1:]}' if other == value and value.startswith("(") else other
    other = f'{{"changed": "changed", {value[1:]}' if value.startswith("{") else other
    other = f'"changed {value[1:]}' if value.startswith('"') else other
    assert other != value
    return f"{text[:start]}{name} = {other}{text[end:]}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("rooms"))


@pytest.fixture(scope="module")
def before(copy):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windtunnel, "__file__", str(copy.package / "__init__.py"))
        return copy.digests()


@pytest.fixture
def changed(copy, before, monkeypatch):
    """Return the stages whose digested code differs after a change of these (file, line)."""
    monkeypatch.setattr(windtunnel, "__file__", str(copy.package / "__init__.py"))

    def run(*edits):
        texts = {file: (copy.package / file).read_text() for file, _ in edits}
        try:
            for file, line in edits:
                copy.change(file, line)
            after = copy.digests()
        finally:
            for file, text in texts.items():
                (copy.package / file).write_text(text)
        return {label for label in before if after[label] != before[label]}

    return run


@pytest.mark.parametrize(("file", "line", "stage"), DECIDING)
def test_a_constant_of_a_room_that_decides_re_runs_its_dependents(changed, file, line, stage):
    assert stage in changed((file, line))


def test_constants_of_rooms_that_schedule_or_report_re_run_nothing(changed):
    assert changed(*SCHEDULING) == set()


def test_no_stage_digests_the_runtime(before):
    digested = {name for code in before.values() for name in code}
    assert not [name for name in digested if name.startswith("windtunnel.runtime")]
    assert {"windtunnel.core.threads", "windtunnel.core.batches"} <= digested
