"""Which code decides a result: what counts as a change of it, what a module reaches, and what is remembered of a file."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel.core.errors import UserError
from windtunnel.operations.resolve import dependencies
from windtunnel.operations.resolve.closure import Code, Memory, draws, read_source
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.schema import Params
from windtunnel.registry.plugins import family_of

PARAMS = {"data": {"source": "digits"}, "model": {"source": "train"}, "budget": {"norm": "Linf", "epsilon": 0.1}}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path):
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "net.py").write_text(
        "from __future__ import annotations\nimport torch\nfrom typing import TYPE_CHECKING\nfrom . import layers\n"
        "if TYPE_CHECKING:\n    import pandas\n\ndef net():\n    from own.late import scale\n    return scale\n"
    )
    (package / "layers.py").write_text("WIDTH = 3\n")
    (package / "late.py").write_text("from importlib import import_module\nscale = import_module('own.named')\n")
    (package / "named.py").write_text("from pathlib import Path\nTEXT = Path(__file__).with_name('names.txt')\n")
    (package / "names.txt").write_text("a\n")
    (package / "apart.py").write_text("import own.net\n")
    return tmp_path


def digest(path, text):
    path.write_text(text)
    return read_source(path, "own.it")["digest"]


def test_comments_docstrings_and_layout_are_no_change_of_code(tmp_path):
    path = tmp_path / "it.py"
    plain = digest(path, "def f(x):\n    return x + 1\n")
    assert digest(path, '"""Says."""\n\n# why\ndef f(x):\n    """Adds."""\n    return (x + 1)  # one\n') == plain
    assert digest(path, "def f(x):\n    return x + 2\n") != plain
    assert digest(path, "def f(x):\n    return x + 1.0\n") != plain


def test_a_docstring_that_a_decorator_may_use_is_content(tmp_path):
    path = tmp_path / "it.py"
    assert digest(path, '@check\ndef f():\n    """One."""\n') != digest(path, '@check\ndef f():\n    """Two."""\n')


def test_a_file_that_is_no_python_is_one_line(tmp_path):
    (tmp_path / "it.py").write_text("def f(:\n")
    with pytest.raises(UserError, match="not Python"):
        read_source(tmp_path / "it.py", "it")


def test_a_closure_has_late_imports_named_imports_and_files_beside_and_none_for_type_checkers(project):
    found = Code(project, Memory(project / "memory.json")).closure(["own.net"])
    assert set(found.code) >= {"own", "own.net", "own.layers", "own.late", "own.named", "own.named: names.txt"}
    assert "own.apart" not in found.code
    assert found.libraries == {"torch"}


def test_what_a_use_does_not_reach_is_left_out_with_all_behind_it(project):
    found = Code(project, Memory(project / "memory.json")).closure(["own.net"], frozenset({"own.late"}))
    assert set(found.code) == {"own", "own.net", "own.layers"}


@pytest.mark.parametrize(("algorithm", "is_code"), [("standard", False), ("adaptive", True)])
def test_only_an_adaptive_entry_depends_on_the_adaptive_attack(tmp_path, algorithm, is_code):
    entry = AttackEntry(library="windtunnel", algorithm=algorithm)
    options = family_of("attacks").dependencies(entry, Params.model_validate(PARAMS).budget).options
    without, _ = dependencies.not_reached(options)
    code = Code(tmp_path, Memory(tmp_path / "memory.json")).closure(["windtunnel.assessments.attacks.assess"], without)
    adaptive = {name for name in code.code if name.startswith("windtunnel.assessments.attacks.adaptive.")}
    assert bool(adaptive) is is_code


FAMILY = """
class Mine:
    name = "mine"

    def run(self):
        return self._helper()

    def _helper(self):
        from own.layers import WIDTH

        return WIDTH

    def preflight(self):
        from own.late import scale

    def report(self):
        from own.named import TEXT
"""


def test_methods_without_a_say_in_results_are_no_code_of_them_nor_what_they_import(project):
    path = project / "own" / "family.py"
    path.write_text(FAMILY)

    def closure(*entry_points):
        memory = Memory(project / "memory.json")
        return Code(project, memory, left_out={"own.family": frozenset({"preflight", "report"})}).closure(entry_points)

    before = closure("own.family").code
    assert set(before) == {"own", "own.family", "own.layers"}
    path.write_text(FAMILY.replace("own.late import scale", "own.net import net"))
    assert closure("own.family").code == before
    path.write_text(FAMILY.replace("return WIDTH", "return WIDTH + 1"))
    assert closure("own.family").code != before
    path.write_text(FAMILY.replace("return self._helper()", "return self.preflight()"))
    assert "own.late" in closure("own.family").code  # run needs it now
    path.write_text(FAMILY)
    assert set(closure("own.family:report").code) >= {"own.family:report", "own.named"}
    assert set(closure("own.family:").code) == {"own", "own.family:"}


def test_who_looks_a_library_up_depends_on_the_record_of_its_family(tmp_path):
    code = Code(tmp_path, Memory(tmp_path / "memory.json"))
    for module in ("attacks.adapters", "attacks.table", "verification.cascade.step", "corruptions.jobs"):
        family = module.partition(".")[0]
        found = code.closure([f"windtunnel.assessments.{module}"]).code
        assert f"windtunnel.assessments.{family}.libraries" in found
    assert (
        "windtunnel.assessments.attacks.family:algorithms"
        in code.closure(["windtunnel.assessments.attacks.assess"]).code
    )


def test_an_entry_point_that_is_not_there_is_one_line(project):
    with pytest.raises(UserError, match=r"own\.absent: no such module"):
        Code(project, Memory(project / "memory.json")).closure(["own.absent"])


def test_the_package_is_found_wherever_it_is_installed(tmp_path):
    found = Code(tmp_path, Memory(tmp_path / "memory.json")).closure(["windtunnel.core.distances"])
    assert {"windtunnel", "windtunnel.core", "windtunnel.core.distances"} <= set(found.code)


def test_drawing_code_is_told_by_its_name():
    assert draws("windtunnel.assessments.figures.scene")
    assert draws("windtunnel.evaluation.summary.sandwich_figure")
    assert not draws("windtunnel.assessments.attacks.evaluate")


def test_a_file_is_read_again_only_where_size_or_time_changed(tmp_path):
    path, reads = tmp_path / "data.bin", []
    path.write_bytes(b"one")
    os.utime(path, (time.time() - 60,) * 2)

    def find(path):
        reads.append(path)
        return path.read_text()

    for content in ("one", "one", "two"):
        if content == "two":
            path.write_bytes(b"two")
            os.utime(path, (time.time() - 30,) * 2)
        memory = Memory(tmp_path / "memory.json")
        assert memory.of("text", path, find) == content
        memory.keep()
    assert len(reads) == 2


def test_a_file_written_this_moment_is_not_remembered(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"one")
    memory = Memory(tmp_path / "memory.json")
    memory.digest(path)
    memory.keep()
    assert not (tmp_path / "memory.json").exists()


def test_a_folder_changes_with_the_names_and_the_bytes_in_it(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a").write_text("x")
    memory = Memory(tmp_path / "memory.json")
    first = memory.digest(folder)
    (folder / "a").rename(folder / "b")
    assert memory.digest(folder) != first


def test_a_damaged_memory_only_costs_time(tmp_path):
    (tmp_path / "memory.json").write_text("{")
    (tmp_path / "a").write_text("x")
    assert Memory(tmp_path / "memory.json").digest(tmp_path / "a") == Memory(tmp_path / "none.json").digest(
        tmp_path / "a"
    )


def test_resolving_the_default_waits_for_no_large_library():
    """It always runs, in about a second: what an entry is made of is known from rows and records alone."""
    code = (
        "import sys; from windtunnel.operations.resolve.build import resolve_all; resolve_all(); "
        "print({'torch', 'numpy', 'mlflow', 'dvc'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
