"""What `windtunnel doctor` says and would run; nothing is installed here."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from windtunnel.cli.doctor import doctor
from windtunnel.core.errors import UserError
from windtunnel.operations import doctor as operations
from windtunnel.operations.doctor import chosen, companions, lacking, shown, steps
from windtunnel.registry.plugins import Install, Lazy, Library, families, libraries, model_source, model_sources

ROOT = Path(__file__).parents[2]


@pytest.fixture
def missing(monkeypatch):
    """Makes distributions missing, by name."""
    hidden: set[str] = set()
    real = operations.installed
    monkeypatch.setattr(operations, "installed", lambda name: None if name in hidden else real(name))
    return hidden


def test_the_versions_without_dependencies_are_those_of_the_lock_file():
    lines = [line for line in (ROOT / "requirements-nodeps.lock").read_text().splitlines() if line[:1] not in ("", "#")]
    assert sorted(lines) == sorted(
        companion.install.requirement for companion in companions() if companion.install.alone
    )


def test_every_library_that_runs_algorithms_can_be_asked_for_by_its_name():
    recorded = {library.name for family in families() for library in libraries(family).values() if library.imports}
    recorded |= {name for name in model_sources() if model_source(name).imports}
    assert recorded <= {companion.name for companion in companions()}


def test_a_library_of_a_plug_in_is_listed_with_what_its_record_says(monkeypatch):
    """Adding a library touches its folder, or its package, alone."""
    known = libraries("attacks")
    mine = Library(
        "mine",
        "attacks",
        "my-attacks",
        Lazy("mine:ROWS"),
        imports=("mine",),
        install=Install("my-attacks>=2", "its attack"),
    )
    monkeypatch.setattr(
        operations, "libraries", lambda family: {**known, "mine": mine} if family == "attacks" else libraries(family)
    )
    (step,) = steps(chosen(["mine"]))
    assert step.command[-1] == "my-attacks>=2"
    assert re.search(
        r"mine +missing +its attack +windtunnel doctor --install mine", CliRunner().invoke(doctor, []).output
    )
    assert "`windtunnel doctor --install mine` installs it" in mine.missing("library")


def test_the_markers_of_companions_are_those_of_the_declared_dependencies():
    text = (ROOT / "pyproject.toml").read_text()
    declared = {r.name: r for r in map(Requirement, [line.strip(' ",') for line in text.splitlines() if ">=" in line and line.startswith('    "')])}  # noqa: E501  # fmt: skip
    for companion in (c for c in companions() if not c.install.alone and not c.install.asked):
        assert declared[companion.distribution].specifier == Requirement(companion.install.requirement).specifier
        assert declared[companion.distribution].marker == Requirement(companion.install.requirement).marker


def test_where_all_is_there_nothing_is_lacking_and_nothing_is_run():
    assert lacking() == []
    said = CliRunner().invoke(doctor, ["--install", "torchattacks", "--yes"])
    assert said.output == "doctor: nothing to install\n"


def test_stale_pins_go_without_dependencies_and_the_rest_with_them(missing):
    missing.update({"torchattacks", "auto-LiRPA", "appdirs", "foolbox"})
    alone, plain = steps(chosen(()))
    assert alone.command[-3:] == ("--no-deps", "torchattacks==3.5.1", "auto-LiRPA==0.3")
    assert "requests" in alone.why
    assert "torch <1.13" in alone.why
    assert plain.command == (sys.executable, "-m", "pip", "install", "foolbox>=3.3.4", "appdirs")


def test_one_is_installed_by_its_name_in_any_case(missing):
    missing.update({"torchattacks", "auto-LiRPA"})
    (step,) = steps(chosen(["AUTO-lirpa"]))
    assert shown(step.command).endswith("-m pip install --no-deps auto-LiRPA==0.3")


def test_every_extra_of_the_package_is_known_to_it():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    known = {Requirement(companion.install.requirement).name for companion in companions()}
    del extras["dev"]
    assert {Requirement(needs[0]).name for needs in extras.values()} <= known
    documented = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2]
    assert set(re.findall(r"\[(\w+)\]`", documented)) == set(extras)


@pytest.mark.parametrize(
    ("torch", "index"), [("2.13.0", ()), ("2.13.0+cpu", ("--extra-index-url", "https://download.pytorch.org/whl/cpu"))]
)
def test_torchvision_comes_for_the_torch_that_is_here(missing, monkeypatch, torch, index):
    """pip alone takes the newest torchvision and with it another torch."""
    missing.update({"timm", "transformers", "torchvision"})
    real = operations.installed
    monkeypatch.setattr(operations, "installed", lambda name: torch if name == "torch" else real(name))
    monkeypatch.setattr(operations, "other_build", lambda: "")
    (step,) = steps(chosen(["timm", "huggingface"]))
    assert step.command[4:] == (*index, "timm>=1.0.15", "torchvision>=0.23", "transformers>=5", "torch==2.13.0")
    assert f"torch stays {torch}" in step.why


def test_a_torchvision_for_another_torch_is_named_and_replaced(monkeypatch):
    monkeypatch.setattr(operations, "installed", lambda name: "99.0")
    monkeypatch.setattr(operations, "other_build", lambda: "is of another torch")
    (step,) = steps(chosen(["torchvision"]))
    assert "--upgrade" in step.command
    said = CliRunner().invoke(doctor, []).output
    assert "! is of another torch" in said
    assert re.search(r"torchvision +99.0, unfit .*windtunnel doctor --install torchvision", said)


def test_an_interpreter_on_which_nothing_was_run_is_untested_and_what_it_lacks_is_named(monkeypatch):
    assert "untested" not in CliRunner().invoke(doctor, []).output
    monkeypatch.setattr(operations.platform, "python_version_tuple", lambda: ("3", "14", "0"))
    monkeypatch.setattr(operations.Companion, "has_wheel", property(lambda companion: companion.name != "Marabou"))
    assert (
        "! Python 3.14 is untested (tested: 3.11, 3.12, 3.13); no build for it: Marabou\n"
        in CliRunner().invoke(doctor, []).output
    )


def test_the_interpreters_of_the_docs_are_those_that_are_called_tested():
    table = (ROOT / "docs" / "install.md").read_text().partition("| everything but the solver |")[2].splitlines()[0]
    assert table.count("yes") == len(operations.TESTED)
    assert table.count("untested") == 1


def test_a_name_that_is_none_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'torchattacks'"):
        chosen(["torchatacks"])


def test_no_build_for_this_python_is_one_line_and_nothing_is_tried(missing, monkeypatch):
    missing.add("maraboupy")
    monkeypatch.setattr(operations.Companion, "has_wheel", property(lambda self: self.name != "Marabou"))
    with pytest.raises(UserError, match=r"Marabou has no build for Python 3\.\d+\.\d+ on"):
        chosen(["Marabou"])
    assert all(companion.name != "Marabou" for companion in chosen(()))


def test_in_an_environment_of_uv_which_has_no_pip_uv_installs(missing, monkeypatch):
    missing.update({"torchattacks", "pip"})
    monkeypatch.setattr(operations.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    (step,) = steps(chosen(["torchattacks"]))
    assert step.command[:5] == ("/bin/uv", "pip", "install", "--python", sys.executable)
    monkeypatch.setattr(operations.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="neither pip nor uv"):
        steps(chosen(["torchattacks"]))


def test_install_shows_the_commands_and_why_and_asks_before_it_runs_them(missing, monkeypatch):
    missing.add("torchattacks")
    ran = []
    monkeypatch.setattr("windtunnel.operations.doctor.run", ran.append)
    said = CliRunner().invoke(doctor, ["--install"], input="n\n").output
    assert "-m pip install --no-deps torchattacks==3.5.1" in said
    assert "mlflow needs 2.28" in said
    assert ran == []
    CliRunner().invoke(doctor, ["--install", "--yes"])
    assert len(ran) == 1


def test_what_is_missing_is_named_with_what_it_would_enable(missing):
    missing.add("auto-LiRPA")
    said = CliRunner().invoke(doctor, []).output
    (line,) = [line for line in said.splitlines() if line.startswith("auto-LiRPA")]
    assert "missing" in line
    assert "verification by bounds" in line
    assert "windtunnel doctor --install auto-LiRPA" in line
    assert "Everything works but what needs auto-LiRPA" in said
