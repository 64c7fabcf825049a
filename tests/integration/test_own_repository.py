"""Somebody else's repository and the wheel alone: no checkout, no module of this folder, five commands at most.

The first commands are processes as their owner starts them; stages are forks of one that has imported the libraries, not windtunnel.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.integration import strangers
from tests.integration.preloaded import preloaded_commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The environment of a user: a virtual environment with the wheel, and the dependencies of this one behind it."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("environment") / "venv"
    listed = ["git", "ls-files", "-z", "src", "pipeline", "pyproject.toml", "README.md", "requirements.lock"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run = {"check": True, "capture_output": True}
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source)], cwd=source, **run
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], **run)
    (wheel,) = source.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(made / "bin" / "python"),
        "install",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(install, **run)
    (packages,) = made.glob("lib/python*/site-packages")
    # Behind what is installed in it: the wheel comes before the windtunnel that this environment may have.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = {
        **os.environ,
        "PATH": f"{made / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
        "OMP_NUM_THREADS": "1",
    }
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "MLFLOW_TRACKING_URI", "DVC_ROOT", "PYTHONDONTWRITEBYTECODE"):
        found.pop(name, None)
    return found


class Stranger:
    """A repository in which commands are run as its owner would."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment = folder, environment

    def preload(self) -> None:
        """Run all further commands, and what they start, in processes forked from one that has imported the libraries."""
        python = shutil.which("python", path=self._environment["PATH"])
        assert python is not None
        path = f"{preloaded_commands(python)}{os.pathsep}{self._environment['PATH']}"
        self._environment = {**self._environment, "PATH": path}

    def run(self, command: str, code: int = 0, below: str = ".") -> str:
        done = subprocess.run(
            command.replace("dvc ", "python -m dvc ", 1) if command.startswith("dvc ") else command, shell=True,
            cwd=self.folder / below, env=self._environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def digests(self, *without: str) -> dict[str, str]:
        """sha256 of every file, git's, DVC's and those of `without` not among them."""
        return {
            path.relative_to(self.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.relative_to(self.folder).parts[0] not in {".git", ".dvc", *without}
        }


def test_a_stranger_has_a_report_after_three_commands_and_no_edit(tmp_path, environment):
    strangers.main(tmp_path)
    mine = Stranger(tmp_path, environment)
    assert "site-packages/windtunnel/__init__.py" in mine.run(
        "python -c 'import windtunnel; print(windtunnel.__file__)'"
    )
    before = mine.digests()

    mine.run("git init -q")
    said = mine.run("windtunnel init --yes")
    mine.preload()
    ran = mine.run("dvc repro robustness/dvc.yaml")

    assert "factory: nets:Net, which weights.pt fits" in said
    reports = tmp_path / "robustness" / "reports"
    assert (reports / "report.pdf").read_bytes().startswith(b"%PDF")
    assert "Robustness of" in (reports / "report.html").read_text()
    metrics = json.loads((reports / "metrics.json").read_text())
    assert metrics["clean"]["accuracy"] > 0.8
    assert metrics["worst_case"]["accuracy"] < metrics["clean"]["accuracy"]
    assert {"attack@pgd", "verify@crown", "corrupt@common"} <= set(re.findall(r"dvc\.yaml:(\S+)'", ran))
    assert mine.digests("robustness", ".dvcignore") == before
    assert (tmp_path / "robustness" / "mlflow.db").is_file()
    again = mine.run("dvc repro robustness/dvc.yaml")
    assert re.findall(r"^Running stage '.*:(\S+)'", again, re.MULTILINE) == ["resolve", "track"]
    assert "Nothing to run" in mine.run("windtunnel status", below="robustness")

    mine.run("windtunnel init --remove --yes")
    assert mine.digests() == before
    assert not (tmp_path / ".dvc").exists()


TRAIN = """\
import torch
from tests_strangers import train
from pathlib import Path

state = train(Path(), epochs=int(Path("epochs.txt").read_text())).state_dict()
torch.save(state, "weights.pt")
"""


@pytest.fixture
def trained(tmp_path, environment):
    """A repository with DVC, a dvc.yaml whose stage trains the network, and everything committed."""
    mine = Stranger(tmp_path, environment)
    shutil.copyfile(strangers.__file__, tmp_path / "tests_strangers.py")
    strangers.write_images(tmp_path / "data" / "test")
    (tmp_path / "nets.py").write_text(strangers.NETS)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "epochs.txt").write_text("1\n")
    mine.run("git init -q && python -m dvc init -q")
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  fit:\n    cmd: python train.py\n    deps: [train.py, epochs.txt]\n    outs: [weights.pt]\n"
    )
    mine.run("dvc repro")
    mine.run("git add -A && git -c user.name=t -c user.email=t@t commit -qm start")
    return mine


def test_init_leaves_a_repository_as_it_is_and_upstream_changes_assess_again(trained):
    before = trained.digests()
    said = trained.run("windtunnel init --yes")
    assert "weights.pt (state_dict, made by the DVC stage fit)" in said
    assert trained.digests("robustness") == before
    assert trained.run("git status --short") == "?? robustness/\n"

    trained.preload()
    made = trained.digests()
    assert "robustness is up to date" in trained.run("windtunnel init --yes")
    assert trained.digests() == made

    trained.run("dvc repro robustness/dvc.yaml:train")
    assert "weights.pt" not in trained.run("dvc status robustness/dvc.yaml")
    (trained.folder / "epochs.txt").write_text("2\n")
    trained.run("dvc repro fit")
    status = trained.run("dvc status robustness/dvc.yaml")
    assert re.search(r"train:\s+changed deps:\s+modified:\s+weights\.pt", status)
    assert "train" in trained.run("windtunnel status", below="robustness")
    (trained.folder / "epochs.txt").write_text("3\n")
    ran = re.findall(r"Running stage '(\S+)'", trained.run("dvc repro robustness/dvc.yaml:train"))
    assert ran.index("fit") < ran.index("robustness/dvc.yaml:resolve") < ran.index("robustness/dvc.yaml:train")

    trained.run("windtunnel init --remove --yes")
    trained.run("git checkout -q . && python -m dvc checkout -q")
    assert trained.digests() == before
    assert trained.run("git status --short") == ""
