"""The published numbers of two reference models come out of the documented example."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.validate import validate
from windtunnel.params.attacks import AttackEntry

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "mnist-lenet5" / "params.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "success"),
    [("mnist_lenet5_clntrained.pt", 1.0), ("mnist_lenet5_advtrained.pt", 0.065)],
    ids=["standard", "robust"],
)
def test_pgd_on_the_reference_lenet5(weights: str, success: float, shared: Path) -> None:
    raw = YAML(typ="safe", pure=True).load(EXAMPLE.read_text())
    mnist = shared / "data" / "mnist"
    raw["data"] |= {"path": str(mnist / raw["data"]["path"]), "labels": str(mnist / raw["data"]["labels"])}
    raw["model"]["path"] = str(shared / "data" / "models" / weights)
    params = validate(raw)
    dataset, _ = load_dataset(params.data, params.seed)
    subject = subject_of(preview_classifier(params.model, dataset, None, "cpu"), dataset, params.seed)
    entry = params.attacks["pgd"]
    assert isinstance(entry, AttackEntry)
    preflight("attacks.pgd", entry, params.budget, subject.classifier, dataset)
    result = assess("pgd", entry, params.budget, subject)
    assert result.metrics["n_samples"] == 500
    assert result.metrics["attack_success_rate"] == pytest.approx(success, abs=0.005)
