"""A clone of this repository, where tests run the real pipeline on params of their own."""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

from tests.integration.preloaded import preloaded_commands
from windtunnel.boundary.mlflow_server import whole_store

ROOT = Path(__file__).parents[2]
EMPTY = (
    "budgets", "clean", "attacks", "queries", "sweeps", "verification", "corruptions", "generators", "latent", "sanity", "report",
)  # fmt: skip


@cache
def empty_store() -> Path:
    """Return MLflow's store with nothing in it, made once a process: its migrations take seconds."""
    folder = Path(tempfile.mkdtemp(prefix="store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    whole_store(folder / "mlflow.db")
    return folder / "mlflow.db"


def _bytecode_of(source: Path) -> list[Path]:
    """Return where Python keeps what it compiled of a source file: a clone need not compile 400 of them again."""
    return [Path(cache_from_source(str(source)))] if source.suffix == ".py" else []


class Clone:
    """A clone of the repository with its own params, DVC cache and MLflow database."""

    def __init__(self, folder: Path, *site: Path) -> None:
        """`site`: further folders of installed packages."""
        self.folder, self._site = folder, site
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
        for name in filter(None, (f.decode() for f in files)):
            if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "dvc.lock")):
                for path in filter(Path.is_file, (ROOT / name, *_bytecode_of(ROOT / name))):
                    copy = folder / path.relative_to(ROOT)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, copy)  # with its time, which bytecode names
        shutil.copyfile(empty_store(), folder / "mlflow.db")
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        self.commit("start")

    def write_params(self, text: str) -> None:
        """`text` as params.yaml, the keys of `EMPTY` that it lacks empty: dvc.yaml needs them all."""
        absent = (f"{key}: {{}}\n" for key in EMPTY if not re.search(rf"^{key}:", text, re.MULTILINE))
        (self.folder / "params.yaml").write_text(text + "".join(absent))

    def commit(self, message: str) -> None:
        for command in (["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", message]):
            subprocess.run(["git", *command], cwd=self.folder, check=True)

    def environment(self) -> dict[str, str]:
        found = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder / "src", *self._site))),
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
        }
        found.pop("MLFLOW_TRACKING_URI", None)
        # Every stage would compile the clone's source for itself.
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        return found

    def start(self, *command: str, preloaded: bool = False) -> subprocess.Popen:
        """Start a command; `preloaded`: it and its stages in processes that have the libraries imported from the start."""
        environment, pipe = self.environment(), subprocess.PIPE
        if preloaded:
            environment["PATH"] = f"{preloaded_commands()}{os.pathsep}{environment['PATH']}"
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *command: str, code: int = 0, both: bool = True) -> str:
        """What a command said, on stderr too unless `both` is false."""
        process = self.start(*command, preloaded=True)
        said, errors = process.communicate()
        assert process.returncode == code, said + errors
        return said + errors if both else said

    def repro(self) -> list[str]:
        """The stages that ran, sorted; without `resolve`, which always does."""
        ran = re.findall(r"^Running stage '([^']+)'", self.run("dvc", "repro"), re.MULTILINE)
        return sorted(stage for stage in ran if stage != "resolve")

    def parents(self, experiment_name: str = "test"):
        import mlflow

        client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{self.folder / 'mlflow.db'}")
        experiment = client.get_experiment_by_name(experiment_name)
        runs = client.search_runs([experiment.experiment_id])
        parents = [r for r in runs if r.data.tags["windtunnel.role"] == "parent"]
        return client, parents, [r for r in runs if r.data.tags["windtunnel.role"] == "assessment"]
