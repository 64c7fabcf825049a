"""A library that is not installed is a line with the command that installs it, for each of the five."""

import subprocess
import sys

import pytest

from windtunnel.core.libraries import MODULES, is_installed, require_library

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


def test_what_is_installed_here_is_found_and_what_is_not_ours_is_not_asked_about():
    assert all(is_installed(library) for library in ("torchattacks", "foolbox", "auto-LiRPA", "imagecorruptions"))
    require_library("attacks.mine", "a library of somebody else")


@pytest.mark.slow
def test_check_answers_a_missing_library_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    empty = ("budgets", "clean", "generators", "latent", "sanity", "report", "tracking", "gate")
    with (tmp_path / "params.yaml").open("a") as file:
        file.writelines(f"{key}: {{}}\n" for key in (*empty, "seed", "device") if key not in {"seed", "device"})
        file.write("seed: 0\ndevice: cpu\n")
    hook = HIDE.format(names=set(MODULES.values()))
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
