"""The one way a stage is run, here and in a project that has only the installed package."""

import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.core.errors import UserError
from windtunnel.operations.stages.run import STAGES, stage_of

ROOT = Path(__file__).parents[2]
DIGITS = """
budget: {norm: Linf, epsilon: 0.05}
data: {samples: {n: 20}}
model: {train: {epochs: 1}}
attacks: {fgsm: {library: torchattacks, algorithm: FGSM}}
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["atack", "pgd"], "stage: 'atack' is not a stage. Did you mean 'attack'?"),
        ([], "stage: '' is not a stage."),
        (["clean", "pgd"], "stage clean: takes no name of an entry, not 'pgd'"),
        (["attack"], "stage attack: takes the name of one entry of `attacks` in params.yaml"),
        (["attack", "a", "b"], "stage attack: takes the name of one entry of `attacks` in params.yaml"),
    ],
)
def test_words_that_name_no_stage_are_refused_in_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        stage_of(*words)
    assert str(caught.value).startswith(said)


def test_every_stage_of_ours_is_a_thin_file_too():
    files = {path.stem for path in (ROOT / "stages").glob("*.py")} - {"__init__"}
    assert set(STAGES) <= files
    assert max(len(path.read_text().splitlines()) for path in (ROOT / "stages").glob("*.py")) < 10


@pytest.mark.slow
def test_stages_run_in_a_project_that_has_no_stages_of_its_own(tmp_path):
    (tmp_path / "params.yaml").write_text(DIGITS)

    def stage(*words):
        command = [sys.executable, "-m", "windtunnel", "stage", *words]
        environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    for words in (["resolve"], ["prepare"], ["train"], ["clean"], ["attack", "fgsm"]):
        done = stage(*words)
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("attack@fgsm: ")
    assert (tmp_path / "reports/robustness/fgsm/robustness_data.pt").is_file()
    done = stage("attack", "pgd")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
