"""What every test may use: small real models, trained once a session, and the shared data where they are."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings
from torch import nn

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.operations.resolve import closure
from windtunnel.params.data import Data
from windtunnel.params.model import Recipe
from windtunnel.runtime import executors

torch.set_num_threads(1)  # xdist runs a worker per core
# How long one example takes is the machine's business: under load the 200 ms of the default are no failure of ours.
# A failure is not explained: that traces calls, and CPython 3.11 hangs in the first one once torch.export has run in the process.
settings.register_profile("any machine", deadline=None, phases=[phase for phase in Phase if phase is not Phase.explain])
settings.load_profile("any machine")
# A Ray of its own for each process: without an address Ray joins whatever cluster another test has on this machine.
os.environ["RAY_ADDRESS"] = "local"
# Tests run side by side: long work of one starts no processes of its own unless the test is about that.
executors.WORTH_WORKERS = float("inf")
ALL = frozenset(Capability)
_read_source = closure.read_source


@cache
def _read_text(path: Path, content: bytes, *how: object) -> closure.ModuleSource:
    return _read_source(path, *how)


# Parsing the package takes 3 s, which is needed once for each process and not for each project that a test makes.
closure.read_source = lambda path, *how: _read_text(path, path.read_bytes(), *how)


# Minutes each: a file that is begun last would leave the other testers idle. xdist keeps this order by file where it is told
# not to order by numbers of tests (Makefile).
LONGEST = (
    "integration/test_walk.py", "runtime/executors/test_executors.py", "integration/test_pipeline.py",
    "integration/test_own_repository.py", "hostile/test_random_kills.py", "integration/test_experiments.py",
    "runtime/executors/test_families.py", "hostile/test_worker_kills.py", "integration/test_failed_entries.py",
    "evaluation/sanity/test_gallery.py", "evaluation/sanity/test_liars.py", "assessments/attacks/test_catalogue.py",
)  # fmt: skip
FIRST = ("integration", "hostile", "operations", "runtime", "reporting")  # then these folders


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        if file in LONGEST:
            return LONGEST.index(file)
        folder = file.partition("/")[0]
        return len(LONGEST) + (FIRST.index(folder) if folder in FIRST else len(FIRST))

    items.sort(key=rank)


def classifier_of(module: nn.Module, num_classes: int, shape: tuple[int, ...], source: str = "test") -> Classifier:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return Classifier(module.eval(), num_classes, shape, ALL, module_digest(module), source)


def pytest_runtest_setup() -> None:
    """Forget the experiment of the test before: MLflow leaves its id in the environment, for processes of another store too."""
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


@pytest.fixture(scope="session")
def digits() -> tuple[Dataset, Dataset]:
    """(200 assessed samples, training split) of scikit-learn's digits."""
    assessed, train = load_dataset(Data(samples={"n": 200, "selection": "stratified"}), 0)
    assert train is not None
    return assessed, train


def _trained(digits: tuple[Dataset, Dataset], **recipe: object) -> Subject:
    assessed, train = digits
    module = train_classifier(Recipe(**recipe), train, 0, torch.device("cpu"))
    return replace(subject_of(classifier_of(module, 10, (1, 8, 8), str(recipe)), assessed), resolved="as tested")


@pytest.fixture(scope="session")
def digits_subject(digits: tuple[Dataset, Dataset]) -> Subject:
    """A small CNN on digits, about 97 % accurate, and 200 test samples."""
    return _trained(digits, architecture="cnn", epochs=8)


@pytest.fixture(scope="session")
def digits_classifier(digits_subject: Subject) -> Classifier:
    return digits_subject.classifier


@pytest.fixture(scope="session")
def mlp_subject(digits: tuple[Dataset, Dataset]) -> Subject:
    """A 64-32-32-10 ReLU network on digits: small enough for Marabou."""
    return _trained(digits, architecture="mlp", epochs=15)


@pytest.fixture(scope="session")
def robust_subject(digits: tuple[Dataset, Dataset]) -> Subject:
    """A CNN trained with PGD examples."""
    return _trained(digits, architecture="cnn", recipe="adversarial", epochs=6)


@pytest.fixture(scope="session")
def linear_subject(digits: tuple[Dataset, Dataset]) -> Subject:
    """A linear classifier on digits: its exact robust radius is known in every norm."""
    assessed, train = digits
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(train.inputs), train.targets).backward()
        optimiser.step()
    return replace(subject_of(classifier_of(module, 10, (1, 8, 8), "linear"), assessed), resolved="as tested")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data and reference models; the test is skipped where it is absent."""
    folder = Path(os.environ.get("WINDTUNNEL_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("the shared data is not here")
    return folder
