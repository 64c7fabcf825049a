"""The package without its extra `pipeline`, or any other package: what runs, and what is refused in one line."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from windtunnel.cli.main import _NEEDS, COMMANDS, cli
from windtunnel.operations.doctor import PIPELINE
from windtunnel.runtime.missing_package import missing_package
from windtunnel.runtime.shutdown import as_user_error

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {extra: lines for extra, lines in PROJECT["optional-dependencies"].items() if extra != "dev"}
PIPELINE_MODULES = {Requirement(line).name for line in EXTRAS["pipeline"]}
# What pip is given, by distribution: the first extra that brings it, or itself.
INSTALLS = {Requirement(line).name: str(Requirement(line.partition(";")[0])) for line in PROJECT["dependencies"]}
INSTALLS |= {Requirement(line).name: f"windtunnel[{extra}]" for extra in reversed(EXTRAS) for line in EXTRAS[extra]}


def hiding(*modules):
    """Code after which nothing can import these modules."""
    return f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def hidden(monkeypatch):
    """Hides the modules of the extra, those that are imported already too."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PIPELINE_MODULES]:
        monkeypatch.delitem(sys.modules, name)
    for name in PIPELINE_MODULES:
        monkeypatch.setitem(sys.modules, name, None)


def test_the_extra_is_what_its_commands_and_doctor_name():
    assert {companion.install.requirement for companion in PIPELINE} == set(EXTRAS["pipeline"])
    assert {module for modules in _NEEDS.values() for module in modules} < PIPELINE_MODULES
    locked = {Requirement(line).name for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line}
    assert locked >= PIPELINE_MODULES


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command):
    assert CliRunner().invoke(cli, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", _NEEDS)
def test_a_command_that_needs_the_extra_ends_with_one_line(hidden, command):
    arguments = ["--budget", "epsilon=0.1"] if command == "sweep" else []
    done = CliRunner().invoke(cli, [command, *arguments])
    assert done.exit_code == 2, done.output
    line = f"windtunnel: {_NEEDS[command][0]} is not installed, which this needs; pip install 'windtunnel[pipeline]'"
    assert done.stderr.startswith(line), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_of_mlflow_is_refused_in_the_same_line(hidden, tmp_path):
    from windtunnel.boundary.models.from_mlflow import fetch_model
    from windtunnel.core.errors import UserError

    with pytest.raises(UserError, match="mlflow is not installed"):
        fetch_model("models:/m@champion", tmp_path, allow_pickle=False)


@pytest.mark.slow
def test_without_the_extra_every_module_but_the_evaluator_imports_and_an_attack_runs():
    code = f"""{hiding(*PIPELINE_MODULES)}
import importlib, pkgutil, torch, windtunnel as wt
for module in pkgutil.walk_packages(wt.__path__, "windtunnel."):
    if not module.name.endswith(("__main__", "operations.evaluator")):
        importlib.import_module(module.name)
result = wt.attack(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)), torch.rand(4, 1, 2, 2), budget="Linf 0.1")
print(result.metrics["adversarial_accuracy"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) <= 1


def test_importing_the_package_imports_no_library():
    path = f"import sys; sys.path.append({str(ROOT / 'src')!r})"
    code = f"{path}; before = set(sys.modules); import windtunnel; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported - set(sys.stdlib_module_names) == {"windtunnel"}


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        (module, distribution)
        for module, distributions in sorted(importlib.metadata.packages_distributions().items())
        for distribution in sorted({*distributions} & INSTALLS.keys() - {"ruamel.yaml.clib"})
        if not module.startswith("_") and module not in {"mpl_toolkits", "pylab", "functorch", "torchgen"}
    ],
)
def test_every_declared_package_that_is_missing_is_one_line(module, distribution):
    error = ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part")
    line = str(as_user_error(error))
    assert line.startswith(f"{module} is not installed, which this needs; pip install '")
    assert Requirement(line.split("'")[1]) == Requirement(INSTALLS[distribution])


def test_a_module_of_ours_that_is_missing_is_a_defect():
    assert missing_package(ModuleNotFoundError("No module named 'windtunnel.nosuch'", name="windtunnel.nosuch")) is None


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("click", ["show"]), ("psutil", ["stage", "resolve"]), ("pydantic", ["gate"]), ("reportlab", ["report"])],
)
def test_a_command_without_a_package_ends_with_one_line(module, arguments, tmp_path):
    code = f"{hiding(module)}\nimport runpy\nsys.argv[1:] = {arguments}\nrunpy.run_module('windtunnel', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"windtunnel: {module} is not installed, which this needs; pip install '{module}>=")
    assert done.stderr.count("\n") == 1


def test_a_function_of_the_package_without_a_library_names_it():
    code = f"{hiding('pydantic')}\nimport windtunnel as wt\ntry: wt.attack\nexcept wt.UserError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pydantic is not installed")
