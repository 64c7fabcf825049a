"""A library that is not installed is a line with the command that installs it, for each of the five."""

import subprocess
import sys
from dataclasses import replace

import pytest

from windtunnel.core.errors import IncompatibleError
from windtunnel.registry.plugins import Lazy, families, libraries, library_of

# Hides the five libraries from a process, as if they were not installed.
HIDE = """
from importlib.machinery import PathFinder
real = PathFinder.find_spec
hidden = {names}
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name.partition(".")[0] in hidden else real(name, *rest))
"""
PARAMS = """
data: {source: digits, samples: {n: 20}}
model: {source: train, train: {epochs: 1}}
budget: {norm: Linf, epsilon: 0.1}
attacks:
  ta: {library: torchattacks, algorithm: PGD}
  fb: {library: foolbox, algorithm: LinfPGD}
  both: {library: windtunnel, algorithm: exhaustive}
queries:
  query: {library: torchattacks, algorithm: Square, params: {n_queries: 10}}
sweeps:
  sweep: {library: foolbox, algorithm: LinfPGD, epsilons: [0, 0.1]}
verification:
  crown: {library: auto-LiRPA, algorithm: crown}
  marabou: {library: Marabou, algorithm: linf-box}
  cascade: {library: windtunnel, algorithm: cascade}
corruptions:
  common: {algorithm: common, upsample: 32}
"""
EXPECTED = {
    "attacks.ta": "torchattacks", "attacks.fb": "foolbox", "attacks.both": "foolbox", "queries.query": "torchattacks",
    "sweeps.sweep": "foolbox", "verification.crown": "auto-LiRPA", "verification.marabou": "Marabou",
    "verification.cascade": "auto-LiRPA", "corruptions.common": "imagecorruptions",
}  # fmt: skip


RECORDS = [library for family in families() for library in libraries(family).values()]


@pytest.mark.parametrize(
    "library", [library for library in RECORDS if library.package != "maraboupy"], ids=lambda r: r.name
)
def test_what_is_installed_here_is_found_and_what_is_built_in_always_is(library):
    library.require("attacks.mine")


def test_a_library_of_another_package_that_is_not_installed_is_a_line_with_what_pip_installs():
    record = replace(
        library_of("torchattacks", "attacks"),
        name="mine",
        package="windtunnel-mine",
        imports=("no_such_module",),
        install=None,
        rows=Lazy("mine:ROWS"),
    )
    with pytest.raises(
        IncompatibleError, match=r"attacks\.a: mine is not installed; `pip install windtunnel-mine` installs it"
    ):
        record.require("attacks.a")


@pytest.mark.slow
def test_check_answers_a_missing_library_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    empty = ("budgets", "clean", "generators", "latent", "sanity", "report", "tracking", "gate")
    with (tmp_path / "params.yaml").open("a") as file:
        file.writelines(f"{key}: {{}}\n" for key in (*empty, "seed", "device") if key not in {"seed", "device"})
        file.write("seed: 0\ndevice: cpu\n")
    hook = HIDE.format(names={record.imports[0] for record in RECORDS if record.imports})
    code = f"{hook}\nfrom windtunnel.cli.main import main\nmain(['check'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2
    for where, library in EXPECTED.items():
        assert (
            f"{where}: {library} is not installed; `windtunnel doctor --install {library}` installs it" in done.stderr
        )
