"""The evidence pack: whole, verified by its own script, and never more than was measured."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.made import content
from windtunnel.core.errors import UserError
from windtunnel.core.files import file_digest, write_json
from windtunnel.core.gate import Decision, GateResult, gate_json
from windtunnel.operations.evidence.pack import write_evidence

PARAMS = """
data: {}
model: {}
budget: {norm: Linf, epsilon: 0.1}
attacks:
  pgd: {library: torchattacks, algorithm: PGD}
verification:
  crown: {library: auto-LiRPA, algorithm: crown}
  smooth: {library: windtunnel, algorithm: smoothing}
"""
BALL = {"perturbation": {"norm": "Linf", "epsilon": 0.1}}
CLEAN = {"clean_accuracy": 0.9, "clean_accuracy_ci_low": 0.8, "clean_accuracy_ci_high": 0.95}


def write_gate(*failures: str) -> None:
    decision = Decision.UNSOUND if failures else Decision.PASSED
    write_json(gate_json(GateResult(decision, (), failures)), Path("reports/gate.json"))


@pytest.fixture
def pack(tmp_path, monkeypatch):
    """A small finished run, and its pack."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)
    Path("dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    digests = {"model_digest": "a" * 64, "dataset_digest": "b" * 64}
    rows = {
        "robustness/clean": ("statistical_sampling", "windtunnel", "identity", CLEAN),
        "robustness/pgd": ("empirical_attack", "torchattacks", "PGD", {**CLEAN, "adversarial_accuracy": 0.3}),
        "robustness/crown": ("formal_verification", "auto-LiRPA", "crown",
                             {**CLEAN, "certified_accuracy": 0.2, "verified_rate": 0.2, "n_samples": 20}),
        "robustness/smooth": ("formal_verification", "windtunnel", "smoothing",
                              {**CLEAN, "certified_accuracy": 0.5, "verified_rate": 0.5, "n_samples": 20}),
        "summary": ("empirical_attack", "windtunnel", "worst case", {**CLEAN, "worst_case_accuracy": 0.3, "certified_accuracy": 0.2}),
        "sanity": ("statistical_sampling", "windtunnel", "sanity", CLEAN),
    }  # fmt: skip
    for folder, (kind, library, algorithm, metrics) in rows.items():
        semantics = {**BALL, "families": ["smoothed_model"] if algorithm == "smoothing" else []}
        facts = content(kind, name=folder, library=library, algorithm=algorithm, metrics=metrics, semantics=semantics,
                        provenance=digests)  # fmt: skip
        write_json(facts, Path("reports") / folder / "metadata.json")
        (Path("reports") / folder / "robustness_data.pt").write_bytes(folder.encode())
    write_gate()
    for name in ("metrics.json", "model/model.json", "summary/outcomes.json"):
        write_json({}, Path("reports") / name)
    for name in ("report.pdf", "report.html"):
        Path("reports", name).write_text("the report")
    write_evidence(Path("pack.zip"))
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile("pack.zip") as archive:
        archive.extractall(folder)
    return folder


def verified(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-I", folder / "verify.py"], capture_output=True, text=True, check=False)


def test_it_holds_the_run_and_its_own_script_verifies_every_file(pack):
    for name in (
        "reports/report.pdf",
        "params.yaml",
        "dvc.lock",
        "environment.json",
        "reports/robustness/pgd/metadata.json",
    ):
        assert (pack / name).is_file()
    assert verified(pack).returncode == 0
    (pack / "reports" / "report.html").write_text("another report")
    (pack / "reports" / "more.txt").write_text("")
    (pack / "dvc.lock").unlink()
    done = verified(pack)
    assert done.returncode == 1
    for line in ("changed: reports/report.html", "not of the pack: reports/more.txt", "missing: dvc.lock"):
        assert line in done.stdout
    tensors = json.loads((pack / "tensors.json").read_text())["sha256"]
    assert tensors["reports/robustness/pgd/robustness_data.pt"] == file_digest(
        Path("reports/robustness/pgd/robustness_data.pt")
    )


def test_every_sentence_has_its_file_and_digest_and_what_is_not_covered_is_said(pack):
    text = (pack / "clauses.md").read_text()
    sentences = [line for line in text.splitlines() if line.startswith("- ") and "Not covered" not in line]
    assert len(sentences) >= 5
    for line in sentences:
        _, file, _, digest, _ = line.split("`") if line.count("`") == 4 else line.rsplit("`", 4)
        assert file_digest(pack / file) == digest
    assert "Accuracy left by pgd (torchattacks PGD, Linf 0.1) is 30.0%." in text
    # A certificate of randomised smoothing is of another model, holds in probability, and bounds no logit of this one.
    assert (
        "The class of the smoothed model is certified, in probability, unchanged in the whole ball Linf 0.1 for 50.0%"
        in text
    )
    assert "The class is verified unchanged in the whole ball Linf 0.1 for 20.0% of the samples (crown" in text
    assert "smooth" not in text.split("reachability")[1]
    for missing in ("15(4)", "relevance", "sensitivity"):
        assert "Not covered by this run" in text.split(missing)[1].split("\n## ")[0]
    assert "data poisoning" in text
    for path in pack.rglob("*"):
        if path.suffix in {".md", ".py"}:
            assert "complian" not in path.read_text().lower()


def test_the_model_card_is_of_hugging_faces_format(pack):
    _, front, body = (pack / "model_card.md").read_text().split("---\n", 2)
    (model,) = YAML(typ="safe").load(front)["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "image-classification"
    assert {m["type"]: m["value"] for m in result["metrics"]} == {
        "accuracy": 0.9, "certified_accuracy": 0.2, "worst_case_accuracy": 0.3,
    }  # fmt: skip
    assert "| worst case accuracy | 30.0% |" in body


def test_equal_runs_give_equal_bytes_and_a_missing_report_is_one_line(pack):
    first = file_digest(Path("pack.zip"))
    write_evidence(Path("pack.zip"))
    assert file_digest(Path("pack.zip")) == first
    Path("reports/report.pdf").unlink()
    with pytest.raises(UserError, match=r"reports/report\.pdf: no such file"):
        write_evidence(Path("again.zip"))
    assert not Path("again.zip").exists()


def test_a_run_that_must_not_be_believed_says_so_first_and_has_no_numbers_for_a_model_card(pack, tmp_path):
    write_gate("sanity check B1: inputs outside the box (pgd)")
    write_evidence(Path("unsound.zip"))
    with zipfile.ZipFile("unsound.zip") as archive:
        card, clauses = (archive.read(name).decode() for name in ("model_card.md", "clauses.md"))
    failure = "**NOT VALID**: sanity check B1: inputs outside the box (pgd)"
    assert clauses.index(failure) < clauses.index("## ")
    assert failure in card
    assert "%" not in card
    assert "model-index" not in card


def test_results_of_other_params_than_those_that_would_be_packed_are_refused(pack):
    lock = {
        "schema": "2.0",
        "stages": {"attack@pgd": {"cmd": "c", "params": {"params.yaml": {"attacks.pgd": {"algorithm": "FGSM"}}}}},
    }
    Path("dvc.lock").write_text(json.dumps(lock))
    with pytest.raises(UserError, match=r"params\.yaml: the results were computed with another attacks\.pgd"):
        write_evidence(Path("again.zip"))
    assert not Path("again.zip").exists()
