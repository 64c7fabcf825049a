"""dvc.yaml: what DVC cannot see by itself is among the dependencies, and no stage reads more params than it names."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
STAGES = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text())["stages"]
BODIES = {name: stage.get("do", stage) for name, stage in STAGES.items()}


@pytest.mark.parametrize("name", sorted(set(BODIES) - {"track", "resolve"}))
def test_a_stage_depends_on_what_was_resolved_for_it_and_on_no_source(name):
    file = f"{name}/${{key}}.json" if "foreach" in STAGES[name] else f"{name}.json"
    assert BODIES[name]["deps"][0] == f"reports/resolved/{file}"
    assert all(dep.startswith(("reports/", "champion")) for dep in BODIES[name]["deps"])


@pytest.mark.parametrize("name", sorted(n for n, stage in STAGES.items() if "foreach" in stage))
def test_an_entry_of_a_family_depends_on_its_own_params_alone(name):
    family = STAGES[name]["foreach"].removeprefix("${").removesuffix("}")
    assert f"{family}.${{key}}" in BODIES[name]["params"]
    assert family not in BODIES[name]["params"]


def test_git_keeps_dvc_lock_and_dvc_keeps_no_volatile_file():
    assert "dvc.lock" not in (ROOT / ".gitignore").read_text()
    assert "runtime.json" in (ROOT / ".dvcignore").read_text().split()


def test_resolve_always_runs_and_leaves_what_did_not_change():
    assert BODIES["resolve"]["always_changed"] is True
    assert BODIES["resolve"]["outs"] == [{"reports/resolved": {"persist": True}}]


def test_the_logging_stage_makes_nothing_that_dvc_could_restore_in_its_place():
    assert BODIES["track"]["always_changed"] is True
    assert "outs" not in BODIES["track"]
