"""Packages of other people that register what does not fit: one line that names the package, before anything runs."""

# ruff: noqa: E501  a row is a line, whatever its length
from __future__ import annotations

import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest

from tests.hostile.harness import MEMORY, SECONDS, _forked, params, write_params
from tests.hostile.selection import selected
from windtunnel.cli.main import main
from windtunnel.params import schema
from windtunnel.registry import plugins

LIBRARY = """
from windtunnel.plugins import AttackRow, Lazy, Library, Norm, Randomness, ThreatModel, algorithm
def Signs(tries: int = 5): ...
def perturb(request, model): return request.inputs
def row(library, name): return AttackRow(algorithm(library, name, ThreatModel.WHITE_BOX, Norm.LINF, "random", Randomness.GLOBAL_RNG))
ROWS = (row("signs", "Signs"),)
def library(**changes):
    whole = dict(name="signs", family="attacks", package=None, rows=Lazy("mod:ROWS"), adapter=Lazy("mod:perturb"), module="mod")
    return Library(**{**whole, **changes})
R = library()
"""
FAMILY = """
from windtunnel.assessments.attacks.table import ALGORITHMS
from windtunnel.params.attacks import AttackEntry
from windtunnel.plugins import Family
class Smears(Family):
    name, stage, order, entry_type, figures = "smears", "smear", 70, AttackEntry, "mod"
    def algorithms(self): return ALGORITHMS
    def run(self, task): ...
def family(**changes):
    vars(smears := Smears()).update(changes)
    return smears
R = family()
"""
LIB, FAM, MODELS, DATA = "windtunnel.libraries", "windtunnel.families", "windtunnel.models", "windtunnel.data"
CHECKS, FIGURES = "windtunnel.checks", "windtunnel.figures"
# group, what follows LIBRARY or FAMILY in the module, and the words of the line.
WRONG: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a library of our name": (LIB, "R = library(name='foolbox')", ("foolbox", "windtunnel", "mine-one")),
    "a library called as what is built in": (LIB, "R = library(name='function')", ("function", "windtunnel", "mine-one")),
    "a library of an unknown family": (LIB, "R = library(family='atacks')", ("family", "atacks", "attacks")),
    "a library without a name": (LIB, "R = library(name='')", ("name", "''")),
    "a library whose name is a number": (LIB, "R = library(name=3)", ("name", "3")),
    "a library whose name is None": (LIB, "R = library(name=None)", ("name", "None")),
    "a library whose name leaves the folder": (LIB, "R = library(name='../a')", ("name", "../a")),
    "a library without rows": (LIB, "R = library(rows=None)", ("rows", "None")),
    "rows that are text": (LIB, "R = library(rows='mod:ROWS')", ("rows", "mod:ROWS")),
    "rows of a module that is not there": (LIB, "R = library(rows=Lazy('nowhere:ROWS'))", ("nowhere:ROWS", "ModuleNotFoundError")),
    "rows that the module does not have": (LIB, "R = library(rows=Lazy('mod:RAWS'))", ("mod:RAWS", "AttributeError")),
    "rows of a reference of another form": (LIB, "R = library(rows=Lazy('mod.ROWS'))", ("mod.ROWS", "package.module:name")),
    "rows that are a number": (LIB, "ROWS = 3", ("rows", "int")),
    "rows that are a generator": (LIB, "ROWS = (r for r in [])", ("rows", "generator")),
    "rows that hold None": (LIB, "ROWS = (None,)", ("rows", "no row")),
    "rows of another library": (LIB, "ROWS = (row('foolbox', 'PGD'),)", ("rows", "foolbox")),
    "one algorithm twice": (LIB, "ROWS = (row('signs', 'Signs'), row('signs', 'Signs'))", ("Signs", "twice")),
    "rows without end": (LIB, "class Rows(tuple):\n    def __iter__(self):\n        while True: yield row('signs', 'Signs')\nROWS = Rows()", ("rows", "Rows")),
    "rows whose length raises": (LIB, "class Rows(tuple):\n    def __len__(self): raise ValueError\nROWS = Rows(ROWS)", ("rows", "Rows")),
    "an algorithm without a name": (LIB, "ROWS = (row('signs', ''),)", ("rows", "name", "''")),
    "an algorithm whose name is a number": (LIB, "ROWS = (row('signs', 3),)", ("rows", "name", "3")),
    "a norm that is text": (LIB, "ROWS = (AttackRow(algorithm('signs', 'Signs', ThreatModel.WHITE_BOX, 'Linf', 'random', Randomness.GLOBAL_RNG)),)", ("rows", "norm", "Linf")),
    "no threat model": (LIB, "ROWS = (AttackRow(algorithm('signs', 'Signs', None, Norm.LINF, 'random', Randomness.GLOBAL_RNG)),)", ("rows", "threat_model", "None")),
    "a library of 100,000 characters": (LIB, "R = library(name='a' * 10**5)", ("characters",)),
    "steps that are no map": (LIB, "R = library(steps=3)", ("steps", "3")),
    "steps that are no references": (LIB, "R = library(steps={'a': 3})", ("steps",)),
    "uses that are a number": (LIB, "R = library(uses=3)", ("uses", "3")),
    "a package that is a number": (LIB, "R = library(package=3)", ("package", "3")),
    "no record but a dictionary": (LIB, "R = {}", ("dict", "Library")),
    "no record but the class": (LIB, "R = Library", ("type", "Library")),
    "a family where a library is registered": (LIB, FAMILY, ("Family", "Library")),
    "a module that raises": (LIB, "raise ValueError('first\\nsecond')", ("ValueError", "first")),
    "a module that exits": (LIB, "import sys; sys.exit(0)", ("sys.exit(0)",)),
    "a module that is interrupted": (LIB, "raise KeyboardInterrupt", ("KeyboardInterrupt",)),
    "a module that is cancelled": (LIB, "import asyncio; raise asyncio.CancelledError('late')", ("CancelledError", "late")),
    "a module that ends the process": (LIB, "import os; os._exit(0)", ("exit code 0",)),
    "rows that exit": (LIB, "del ROWS\ndef __getattr__(name): raise SystemExit(0)", ("mod:ROWS", "sys.exit(0)")),
    "a module that takes all memory": (LIB, "b = bytearray(10**13)", ("GB of memory", "mine")),
    "a module that sleeps": (LIB, "import time; time.sleep(60)", ("has not answered in 1 s", "model.time_limit", "mine")),
    "a module that is no Python": (LIB, "R = (", ("SyntaxError",)),
    "a module without the record": (LIB, "del R", ("AttributeError", "R")),
    "a family of our name": (FAM, "R = family(name='attacks')", ("attacks", "windtunnel", "mine-one")),
    "a family called as a key of params.yaml": (FAM, "R = family(name='budget')", ("budget", "key")),
    "a family with a stage of ours": (FAM, "R = family(stage='attack')", ("attack", "stage")),
    "a family with the pipeline's own stage": (FAM, "R = family(stage='resolve')", ("resolve", "stage")),
    "a family whose order is NaN": (FAM, "R = family(order=float('nan'))", ("order", "nan")),
    "a family whose stage leaves the folder": (FAM, "R = family(stage='../x')", ("stage", "../x")),
    "a family whose figures are text": (FAM, "R = family(visualisers='x')", ("visualisers", "x")),
    "a family without algorithms": (FAM, "del Smears.algorithms\nR = type('R', (Smears,), {'algorithms': Family.algorithms})()", ("TypeError", "algorithms")),
    "no family but its class": (FAM, "R = Smears", ("ABCMeta", "Family")),
    "a family whose order is text": (FAM, "R = family(order='last')", ("order", "last")),
    "a family without an entry": (FAM, "del Smears.entry_type\nR = Smears()", ("entry_type", "None")),
    "a family whose entry is no model": (FAM, "R = family(entry_type=int)", ("entry_type", "int")),
    "a family whose name is no word": (FAM, "R = family(name='a b')", ("name", "a b")),
    "a family whose stage is no word": (FAM, "R = family(stage='a;b')", ("stage", "a;b")),
    "a family whose headline is a number": (FAM, "R = family(headline=1)", ("headline", "1")),
    "a family that is a library": (FAM, LIBRARY, ("Library", "Family")),
    "a family that exits": (FAM, "raise SystemExit(0)", ("sys.exit(0)",)),
    "figures that raise": (FIGURES, "raise ValueError('no figure')", ("no figure",)),
    "a figure of our name": (FIGURES, "from windtunnel.plugins import register\n@register\nclass ImagePairVisualiser: pass", ("ImagePairVisualiser", "taken")),
}  # fmt: skip


def install(folder: Path, distribution: str, group: str, name: str, module: str, code: str, value: str) -> None:
    """A distribution as pip leaves it: a module and its metadata."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


def check(folder: Path) -> None:
    """`windtunnel check` where the distributions of `folder` are installed."""
    sys.path.insert(0, str(folder))
    invalidate_caches()
    for cached in (
        plugins.families,
        plugins.libraries,
        plugins.plugins,
        plugins._all_entry_points,
        plugins.model_source,
    ):
        cached.cache_clear()
    schema.params_model.cache_clear()
    for name in [
        n for n in sys.modules if n.startswith("windtunnel.assessments") and n.endswith((".table", ".registry"))
    ]:
        del sys.modules[name]
    from windtunnel.assessments.attacks import table
    from windtunnel.assessments.figures.registry import register_figures

    assert table.ROWS
    register_figures()
    main(["check"])


def run(project: Path, folder: Path):
    def work() -> None:
        try:
            check(folder)
        except Exception as error:
            if type(error).__name__ != "UserError":
                raise
            print(str(error), file=sys.stderr)
            sys.exit(2)

    write_params(project, params(model={"time_limit": 1}))
    return _forked(work, project, SECONDS, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", selected(WRONG, "plugins", str))
def test_a_wrong_record_is_one_line(tmp_path, project, name):
    group, code, words = WRONG[name]
    base = {LIB: LIBRARY, FAM: FAMILY}.get(group, "")
    folder = tmp_path / "site"
    folder.mkdir()
    install(
        folder, "mine-one", group, "mine", "mod", f"{base}\n{code}\n", "mod" if group in (FIGURES, CHECKS) else "mod:R"
    )
    ended = run(project, folder)
    assert ended.code == 2, (ended.out[-500:], ended.err[-2500:])
    for word in words:
        assert word in ended.line
    assert len(ended.line) < 1000
    assert ended.memory < MEMORY


@pytest.mark.slow
@pytest.mark.parametrize("group", [LIB, FAM, MODELS, DATA, CHECKS, FIGURES])
def test_one_name_in_two_distributions_is_refused_with_both(tmp_path, project, group):
    folder = tmp_path / "site"
    folder.mkdir()
    for number in ("one", "two"):
        code = {LIB: LIBRARY, FAM: FAMILY}.get(group, "def R(*_): ...").replace("mod:", f"mod{number}:")
        install(folder, f"mine-{number}", group, "mine", f"mod{number}", code, f"mod{number}:R")
    ended = run(project, folder)
    assert ended.code == 2, (ended.out[-500:], ended.err[-2500:])
    assert "mine-one" in ended.line
    assert "mine-two" in ended.line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name"), [(MODELS, "onnx"), (MODELS, "timm"), (MODELS, "train"), (DATA, "npz"), (DATA, "digits")]
)
def test_a_source_of_our_name_is_refused(tmp_path, project, group, name):
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder, "mine-one", group, name, "mod", "def R(*_): ...", "mod:R")
    ended = run(project, folder)
    assert ended.code == 2, (ended.out[-500:], ended.err[-2500:])
    assert f"'{name}'" in ended.line
    assert "mine-one" in ended.line


@pytest.mark.slow
@pytest.mark.parametrize(("group", "code"), [(LIB, LIBRARY), (FAM, FAMILY)])
def test_a_right_record_is_taken(tmp_path, project, group, code):
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder, "mine-one", group, "mine", "mod", code, "mod:R")
    ended = run(project, folder)
    assert ended.code == 0, (ended.out[-500:], ended.err[-2500:])
