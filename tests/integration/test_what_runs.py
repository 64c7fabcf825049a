"""Edit this, and exactly these stages run: real edits in a clone, evaluated by what DVC says after `resolve`.

Also here, on the same run: no stage executes code that was not digested for it.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from dvc.repo import Repo
from sklearn.datasets import load_digits

from tests.integration.clone import Clone
from windtunnel.operations.resolve.closure import STAGE_LOG, Code, Memory, read_source, schedules
from windtunnel.operations.resolve.dependencies import lazy_imports
from windtunnel.registry.plugins import families

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PARAMS = """
seed: 0
device: cpu
data: {source: npz, path: data.npz, train_path: train.npz}
model: {source: state_dict, path: weights.pt, factory: "own.nets:net"}
budget: {norm: Linf, epsilon: 0.05}
budgets: {wide: {norm: Linf, epsilon: 0.12}}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
  pgd: {library: torchattacks, algorithm: PGD, budget: {norm: Linf, epsilon: 0.03, step_size: 0.02, steps: 2}}
  deepfool: {library: foolbox, algorithm: L2DeepFoolAttack, budget: {norm: L2, epsilon: 0.5, steps: 2}}
  rest: {library: torchattacks, algorithm: FGSM, on: {survivors_of: [fgsm]}}
queries:
  evoba: {algorithm: EvoBA, params: {generation_size: 4, generations: 2}, samples: {n: 2}}
sweeps:
  curve: {epsilons: [0, 0.05]}
verification:
  crown: {library: auto-LiRPA, algorithm: crown, samples: {n: 2}}
  marabou: {library: Marabou, algorithm: linf-box, timeout: 2, samples: {n: 1}}
corruptions:
  blur: {algorithm: gaussian_blur, severities: [1], upsample: 32, samples: {n: 2}}
generators: {train: {steps: 2, latent_dim: 2}}
latent: {}
sanity: {profile: stored}
report: {}
tracking: {experiment: test}
gate: {}
"""
NETS = """
from torch import nn

from own.parts import WIDTH


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
"""
# Where DVC's child processes say which of our modules they have imported: those of solvers and of corruptions too.
PROBE = """
import atexit, os, sys

def tell():
    names = [n for n in sys.modules if n.partition(".")[0] in ("windtunnel", "stages", "own")]
    with open(os.environ["SEEN"], "a") as file:
        file.writelines(f"{os.environ['DVC_STAGE']} {n}\\n" for n in names if n != "__main__")

if "DVC_STAGE" in os.environ:
    atexit.register(tell)
"""
ATTACKS = {"attack@fgsm", "attack@pgd", "attack@deepfool", "attack@rest"}
VERIFY = {"verify@crown", "verify@marabou"}
DRAWN = {*ATTACKS, *VERIFY, "query@evoba", "sweep@curve", "corrupt@blur", "corrupt@against"}
ASKED = {*DRAWN, "clean"}  # they ask the model
WHOLE = {"sanity", "summary"}  # they read every entry
TORCH = {*ASKED, *WHOLE, "prepare", "train", "generators", "report"}


class Project(Clone):
    """The clone of a user with data, a network and weights of their own, and with results of another run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.probe = folder.parent / "probe"
        self.probe.mkdir()
        (self.probe / "sitecustomize.py").write_text(PROBE)
        self.seen = folder.parent / "seen.txt"
        x, y = load_digits(return_X_y=True)
        images = (x / 16).astype("float32").reshape(-1, 1, 8, 8)
        np.savez(folder / "data.npz", x=images[:8], y=y[:8])
        np.savez(folder / "train.npz", x=images[8:108], y=y[8:108])
        (folder / "own").mkdir()
        (folder / "own" / "__init__.py").touch()
        (folder / "own" / "nets.py").write_text(NETS)
        (folder / "own" / "parts.py").write_text("WIDTH = 8\n")
        make = (
            "import torch; from own.nets import net; torch.manual_seed(0); torch.save(net().state_dict(), 'weights.pt')"
        )
        subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)
        self.write_params(PARAMS)

    def environment(self) -> dict[str, str]:
        found = super().environment()
        return {**found, "PYTHONPATH": f"{self.probe}:{found['PYTHONPATH']}", "SEEN": str(self.seen)}

    def add_a_reference(self) -> None:
        """A suite that another run has left, and an entry measured against it; copied results stand for its run."""
        shutil.copytree(self.folder / "reports" / "robustness" / "blur", self.folder / "elsewhere")
        block = "  against: {algorithm: gaussian_blur, severities: [1], upsample: 32, samples: {n: 2}, reference: elsewhere}\n"
        self.write_params(PARAMS.replace("corruptions:\n", f"corruptions:\n{block}"))
        for made in ("robustness/blur", "digests/blur.json", "plots/corrupt/blur.csv"):
            source = self.folder / "reports" / made
            target = source.with_name(source.name.replace("blur", "against"))
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        self.run("python", "-m", "stages.resolve")
        self.run("dvc", "commit", "--force")

    def would_run(self) -> set[str]:
        """The stages that `dvc repro` would run first, other than those that always do; what they make decides the rest."""
        self.run("python", "-m", "stages.resolve")
        with Repo(str(self.folder)) as repo:  # what `dvc status` prints
            # With the file's path before the name, unless called where dvc.yaml is.
            return {stage.rpartition(":")[2] for stage in repo.status()} - {"resolve", "track"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = Project(tmp_path_factory.mktemp("what") / "project")
    made.run("dvc", "repro")
    made.add_a_reference()
    made.commit("results")
    return made


def edit(path, old, new):
    """Replace text in a file of the project; it must be there."""

    def change(folder: Path) -> None:
        text = (folder / path).read_text()
        assert old in text, f"{path} has no {old!r} any more"
        (folder / path).write_text(text.replace(old, new, 1))

    return change


def append(path, text):
    def change(folder: Path) -> None:
        with (folder / path).open("a") as file:
            file.write(text)

    return change


def version(distribution, number):
    """As if `number` of a distribution were installed: its metadata come first on Python's path."""

    def change(folder: Path) -> None:
        info = folder / "src" / f"{distribution.replace('-', '_')}-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {number}\n")

    return change


def other_weights(folder: Path) -> None:
    make = "import torch; from own.nets import net; torch.manual_seed(1); torch.save(net().state_dict(), 'weights.pt')"
    subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)


def other_data(folder: Path) -> None:
    with np.load(folder / "data.npz") as kept:
        np.savez(folder / "data.npz", x=kept["x"] * 0.9, y=kept["y"])


def other_reference(folder: Path) -> None:
    path = folder / "elsewhere" / "metadata.json"
    path.write_text(path.read_text() + "\n")


PACKAGE = "src/windtunnel"
A = f"{PACKAGE}/assessments"
ROWS = {
    "nothing": (lambda folder: None, set()),
    # What is not code, or no code of a stage
    "a comment in an adapter": (append(f"{A}/attacks/torchattacks/adapter.py", "\n# why\n"), set()),
    "a docstring": (edit(f"{A}/attacks/evaluate.py", '"""', '"""Changed: '), set()),
    "a command": (append(f"{PACKAGE}/cli/show.py", "\nX = 1\n"), set()),
    "the code that resolves": (append(f"{PACKAGE}/operations/resolve/build.py", "\nX = 1\n"), set()),
    "the tracking code": (append(f"{PACKAGE}/operations/tracking/store.py", "\nX = 1\n"), set()),
    "the validation of names": (append(f"{PACKAGE}/evaluation/validate.py", "\nX = 1\n"), set()),
    "the redaction of passwords": (edit(f"{PACKAGE}/runtime/credentials.py", "_SHORTEST = 4", "_SHORTEST = 5"), set()),
    "an executor": (append(f"{PACKAGE}/runtime/executors/ray_cluster.py", "\nX = 1\n"), set()),
    "the progress bar": (append(f"{PACKAGE}/runtime/progress.py", "\nX = 1\n"), set()),
    "the lock of the tools": (append("requirements-dev.lock", "nothing==1\n"), set()),
    "the lock of a run": (append("requirements.lock", "nothing==1\n"), set()),
    "the readme": (append("README.md", "more\n"), set()),
    # Code
    "an adapter": (
        append(f"{A}/attacks/torchattacks/adapter.py", "\nX = 1\n"),
        {"attack@fgsm", "attack@pgd", "attack@rest"},
    ),
    "the other adapter": (append(f"{A}/attacks/foolbox/adapter.py", "\nX = 1\n"), {"attack@deepfool"}),
    "a search of our own": (append(f"{A}/queries/algorithms.py", "\nX = 1\n"), {"query@evoba"}),
    "the solver's process": (append(f"{A}/verification/marabou/worker.py", "\nX = 1\n"), {"verify@marabou"}),
    "what bounds": (append(f"{A}/verification/cascade/bound_step.py", "\nX = 1\n"), {"verify@crown"}),
    "what corrupts": (append(f"{A}/corruptions/corrupt.py", "\nX = 1\n"), {"corrupt@blur", "corrupt@against"}),
    "a sanity check": (append(f"{PACKAGE}/evaluation/sanity/gradients.py", "\nX = 1\n"), {"sanity"}),
    "the explanation of a check": (  # which is shown beside its result
        edit(f"{PACKAGE}/evaluation/sanity/comparisons.py", ') -> CheckResult:\n    """', ') -> CheckResult:\n    """Look: '),
        {"sanity"},
    ),
    "the gate": (append(f"{PACKAGE}/evaluation/gate/decide.py", "\nX = 1\n"), {"gate"}),
    "a template of the report": (append(f"{PACKAGE}/reporting/report/templates/report.css", "\n"), {"report"}),
    "how data are read": (append(f"{PACKAGE}/boundary/data/sources.py", "\nX = 1\n"), TORCH - {"report"}),
    "how clean logits are read": (
        append(f"{A}/clean/subject.py", "\nX = 1\n"), {*ASKED, *WHOLE},
    ),
    "a stage's own file": (append("stages/sweep.py", "\nX = 1\n"), {"sweep@curve"}),
    "what a stage does": (append(f"{PACKAGE}/operations/stages/summary.py", "\nX = 1\n"), {"summary"}),
    "how one family is run": (append(f"{A}/latent/run.py", "\nX = 1\n"), set()),
    "the record of a family": (append(f"{A}/queries/family.py", "\nX = 1\n"), {"query@evoba", *WHOLE, "report"}),
    # Drawing
    "a colour": (edit(f"{A}/figures/scene.py", "#0072B2", "#0072B3"), {*DRAWN, "clean", "summary", "report"}),
    "how a picture is painted": (append(f"{A}/figures/paint.py", "\nX = 1\n"), {*DRAWN, "clean", "summary", "report"}),
    "a figure of one family": (append(f"{A}/sweeps/figures.py", "\nX = 1\n"), {"sweep@curve", "report"}),
    "which figures an entry draws": (
        edit("params.yaml", "algorithm: EvoBA,", "algorithm: EvoBA, visualisers: [QueryHistogramsVisualiser],"),
        {"query@evoba"},
    ),
    # Libraries
    "torchattacks": (version("torchattacks", "9.9"), {"attack@fgsm", "attack@pgd", "attack@rest"}),
    "foolbox": (version("foolbox", "9.9"), {"attack@deepfool"}),
    "auto-LiRPA": (version("auto-LiRPA", "0.4"), {"verify@crown"}),
    "Marabou": (version("maraboupy", "9.9"), {"verify@marabou"}),
    "onnxruntime": (version("onnxruntime", "9.9"), {"verify@marabou"}),
    "imagecorruptions": (version("imagecorruptions", "9.9"), {"corrupt@blur", "corrupt@against"}),
    "another build of torch": (version("torch", "2.13.0+cu130"), set()),
    "torch": (version("torch", "9.9"), TORCH),
    "matplotlib": (version("matplotlib", "9.9"), {*DRAWN, "clean", "summary", "report"}),
    "mlflow": (version("mlflow", "9.9"), set()),
    "a linter": (version("ruff", "9.9"), set()),
    "a progress bar": (version("rich", "99"), set()),
    # Params
    "a default in the schema": (
        edit(f"{PACKAGE}/params/verification.py", "iterations: PositiveInt = key(8", "iterations: PositiveInt = key(9"),
        {*VERIFY, *WHOLE, "report"},
    ),
    "an unused budget": (edit("params.yaml", "epsilon: 0.12", "epsilon: 0.2"), set()),
    "the budget": (
        edit("params.yaml", "{norm: Linf, epsilon: 0.05}", "{norm: Linf, epsilon: 0.06}"),
        {"attack@fgsm", "attack@rest", *VERIFY, *WHOLE},
    ),
    "the budget by its name": (
        edit("params.yaml", "budget: {norm: Linf, epsilon: 0.05}", "budget: wide"),
        {"attack@fgsm", "attack@rest", *VERIFY, *WHOLE},
    ),
    "the same budget, written differently": (edit("params.yaml", "epsilon: 0.05}", "epsilon: 5/100}"), set()),
    "an entry": (edit("params.yaml", "step_size: 0.02", "step_size: 0.01"), {"attack@pgd", *WHOLE}),
    "an entry that others build on": (
        edit("params.yaml", "algorithm: FGSM}", "algorithm: FGSM, batch_size: 4}"),
        {"attack@fgsm", "attack@rest", *WHOLE},
    ),
    "the seed": (edit("params.yaml", "seed: 0", "seed: 1"), TORCH - {"report"}),
    "what the report says of a family": (append(f"{A}/latent/reported.py", "\nX = 1\n"), {"report"}),
    "a chart that compares": (append(f"{PACKAGE}/reporting/report/sections/compared.py", "\nX = 1\n"), {"report"}),
    "the title of the report": (edit("params.yaml", "report: {}", "report: {title: Mine}"), {"report"}),
    "a floor of the gate": (edit("params.yaml", "gate: {}", "gate: {minimum: {clean/accuracy: 0.1}}"), {"gate", "sanity"}),
    "a threshold of a check": (edit("params.yaml", "profile: stored", "profile: stored, thresholds: {C3: 0.5}"), {"sanity"}),
    "where runs are tracked": (edit("params.yaml", "experiment: test", "experiment: elsewhere"), set()),
    # Files of the user, changed in place
    "data": (other_data, {"prepare"}),
    "weights": (other_weights, {"train"}),
    "a module that the network's module imports": (
        edit("own/parts.py", "8", "8 + 0"), {*ASKED, *WHOLE, "train"},
    ),
    "a comment in the network's module": (append("own/nets.py", "# mine\n"), set()),
    "a reference directory": (other_reference, {"corrupt@against"}),
}  # fmt: skip


def runs_after(project: Project, names: Iterable[str]) -> set[str]:
    """The stages that would run after these edits, which are taken back."""
    for name in names:
        ROWS[name][0](project.folder)
    try:
        return project.would_run()
    finally:
        for command in (["checkout", "-q", "."], ["clean", "-fdq", "src"]):
            subprocess.run(["git", *command], cwd=project.folder, check=True)


@pytest.mark.parametrize("name", [name for name, (_, expected) in ROWS.items() if expected])
def test_exactly_what_an_edit_decides_runs(project, name):
    assert runs_after(project, [name]) == ROWS[name][1]


def test_edits_that_decide_nothing_run_nothing(project):
    """All of them at once: none can hide what another would run."""
    names = [name for name, (_, expected) in ROWS.items() if not expected]
    assert len(names) >= 20
    together = runs_after(project, names)
    assert not together, {name: stages for name in names if (stages := runs_after(project, [name]))}


def test_no_stage_executes_code_that_was_not_digested(project):
    seen: dict[str, set[str]] = {}
    for line in project.seen.read_text().splitlines():
        stage, module = line.split()
        seen.setdefault(stage, set()).add(module)
    assert set(seen) >= TORCH - {"corrupt@against"}
    code = Code(project.folder, Memory(project.probe / "memory.json"))
    # What a family refuses has no result, so what its `preflight` alone imports is in no key.
    lazily = Code(project.folder, code.memory, lazy_imports())
    refuses = {
        family.stage: set(lazily.closure([f"{type(family).__module__.rpartition('.')[0]}.preflight"]).code)
        for family in families().values()
    }
    log = read_source(Path(str(code.file(STAGE_LOG))), STAGE_LOG)["imports"]
    logged = set(code.closure(name for name in log if code.file(name)).code)  # what the last line of a stage reads
    for stage, modules in sorted(seen.items()):
        if stage in ("resolve", "track"):
            continue
        resolved = json.loads((project.folder / "reports/resolved" / f"{stage.replace('@', '/')}.json").read_text())
        digested = {name.partition(":")[0] for part in ("work", "drawing") for name in resolved[part]["code"]}
        imported = modules - digested - logged - refuses.get(stage.partition("@")[0], set())
        more = {name for name in imported if not schedules(name)}
        assert not more, f"{stage} also executes {sorted(more)}"


def test_nothing_of_the_machine_is_in_what_was_resolved(project):
    text = "".join(path.read_text() for path in (project.folder / "reports/resolved").rglob("*.json"))
    assert str(project.folder) not in text
    assert str(Path.home()) not in text
    assert "+cpu" not in text
