"""A project that is a folder of a larger repository finds the repository's modules, and keeps its store in its own folder."""

import subprocess
import sys
import zipfile
from importlib import import_module

import pytest

from windtunnel.boundary.mlflow_server import main_root
from windtunnel.core.references import asking_project, code_folders, dvc_root, repository, resolve
from windtunnel.operations.dvc_files import damaged_files
from windtunnel.operations.resolve.closure import Code, Memory


@pytest.fixture
def project(tmp_path, monkeypatch):
    """`robustness/` of a git repository with modules at its root, in src/ and in a folder without __init__.py."""
    root = tmp_path / "repository"
    folder = root / "robustness"
    for path, text in {
        "plain_nets.py": "import torch\n\ndef net():\n    from loose_parts.layers import WIDTH\n    return WIDTH\n",
        "loose_parts/layers.py": "WIDTH = 3\n",
        "src/packed/__init__.py": "",
        "src/packed/nets.py": "def net():\n    return 'src'\n",
        "robustness/params.yaml": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / ".dvc").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def test_modules_of_the_repository_are_found_from_a_folder_of_it(project):
    assert resolve("plain_nets:net", "model.factory")() == 3
    assert resolve("packed.nets:net", "model.factory")() == "src"
    assert sys.path.index(str(project)) == 0
    assert sys.path[-2:] == [str(project.parent), str(project.parent / "src")]  # what is installed comes before them
    assert not [*project.parent.rglob("__pycache__")]  # and the repository stays as it is


def test_an_archive_of_the_user_on_the_path_is_imported(project):
    with zipfile.ZipFile(project / "parts.zip", "w") as archive:
        archive.writestr("zipped_nets.py", "WIDTH = 5\n")
    sys.path.insert(0, str(project / "parts.zip"))
    resolve("plain_nets:net", "model.factory")
    assert import_module("zipped_nets").WIDTH == 5


def test_their_code_decides_results_and_a_folder_without_init_is_no_library(project):
    found = Code(project, Memory(project / "memory.json")).closure(["plain_nets", "packed.nets"])
    assert set(found.code) == {"plain_nets", "loose_parts.layers", "packed", "packed.nets"}
    assert found.libraries == {"torch"}


def test_roots_are_those_of_the_repository(project):
    assert repository() == dvc_root() == project.parent
    assert code_folders() == [project, project.parent, project.parent / "src"]


def test_the_store_lies_in_the_project_and_not_in_the_repository_around_it(project):
    assert main_root() == asking_project() == project


@pytest.mark.parametrize("of_dvc", [".", "robustness"])  # `dvc init`, and `dvc init --subdir`
@pytest.mark.parametrize("place", ["tmp1", "standalone/tmp1"])  # --queue, and --temp
def test_an_experiment_of_dvc_logs_into_the_project_that_asked_for_it(project, monkeypatch, of_dvc, place):
    clone = project.parent / of_dvc / ".dvc" / "tmp" / "exps" / place
    (clone / "robustness").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    monkeypatch.chdir(clone / "robustness")
    assert main_root() == asking_project() == project


def test_outside_of_git_it_is_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main_root() == asking_project() == tmp_path
    assert repository() is None
    assert code_folders() == [tmp_path]


def test_what_a_kill_damaged_of_dvc_is_found_above_the_project(project):
    (project.parent / ".dvc" / "tmp").mkdir()
    (project.parent / ".dvc" / "tmp" / "rwlock").touch()
    (damage,) = damaged_files()
    assert damage.command == "rm ../.dvc/tmp/rwlock"
