"""The recipes for rented machines: valid by the schemas of those who read them, of this repository's own commands, and portable."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from windtunnel.cli.main import COMMANDS
from windtunnel.runtime.executors import executor

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "pipeline" / "clusters"
# Of SkyPilot 0.14's schema of a task; SkyPilot itself validates where it is installed.
_KEYS = {"name", "num_nodes", "workdir", "resources", "envs", "setup", "run"}


def test_the_cml_workflow_is_valid_by_githubs_schema():
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, str(RECIPES / "cml.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_skypilot_task_has_the_keys_and_types_of_its_schema():
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    assert set(task) == _KEYS
    assert isinstance(task["num_nodes"], int)
    assert all(isinstance(value, str) for value in task["envs"].values())
    assert {"cpus", "memory", "use_spot"} == set(task["resources"])


def test_skypilot_accepts_the_task():
    schemas = pytest.importorskip("sky.utils.schemas", reason="SkyPilot is not installed")
    from jsonschema import validate

    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    validate(task, schemas.get_task_schema())
    validate(task["resources"], schemas.get_resources_schema())


def scripts():
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    workflow = yaml.safe_load((RECIPES / "cml.yml").read_text())
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    return [task["setup"], task["run"], *steps]


@pytest.mark.parametrize("script", scripts())
def test_the_shell_parts_parse_and_call_what_there_is(script, monkeypatch):
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    for command in re.findall(r"(?:^|[ /;{])windtunnel ([a-z]+)", script):
        assert command in COMMANDS
    for asked in re.findall(r"WINDTUNNEL_EXECUTOR=\"?([a-z]+)", script):
        monkeypatch.setenv("WINDTUNNEL_EXECUTOR", asked if asked == "ray" else f"{asked}:2")
        executor()


@pytest.mark.parametrize("name", ["skypilot.yaml", "cml.yml"])
def test_no_recipe_names_a_place_of_one_machine(name):
    assert not re.search(r"(?<![\w$}/.:>])/(home|work|root|Users|mnt|opt|tmp)\b", (RECIPES / name).read_text())
