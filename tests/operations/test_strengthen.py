"""What a flagged check asks for can be run: entries in params.yaml, on what the others left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from benchmarks.gallery.masks import wrong_sign
from windtunnel.assessments.attacks.assess import assess
from windtunnel.boundary.params import load_params
from windtunnel.cli.main import cli
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.remedies import REMEDIES, stronger
from windtunnel.evaluation.sanity.run import registry
from windtunnel.evaluation.validate import validate
from windtunnel.operations.strengthen import add_to, lines_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.files import write_json
from windtunnel.records.findings import FindingRecord
from windtunnel.records.layout import SANITY

BUDGET = Budget(norm="Linf", epsilon=0.1)
PGD = AttackEntry(library="torchattacks", algorithm="PGD", budget={"steps": 20, "step_size": 0.0125})
MASKED = [FindingRecord(id="D15", title="masked", status="fail", severity="HARD", assessments=["pgd"])]


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_every_remedy_is_of_a_check_and_makes_a_valid_entry(norm: str) -> None:
    assert set(REMEDIES) <= set(registry())
    pgd = AttackEntry(library="torchattacks", algorithm="PGD" if norm == "Linf" else "PGDL2")
    budget = Budget(norm=norm, epsilon=0.1)
    for check, kinds in REMEDIES.items():
        found = stronger([MASKED[0].model_copy(update={"id": check})], {"pgd": pgd}, budget)
        assert len(found) == len(kinds)
        for name, entry in found.items():
            made = AttackEntry.model_validate(entry)
            assert made.on.survivors_of == ["pgd"], name
            run = {
                "data": {},
                "model": {},
                "budget": {"norm": norm, "epsilon": 0.1},
                "attacks": {"pgd": pgd.model_dump(), name: entry},
            }
            validate(run)  # the algorithm knows the norm


def test_a_head_of_two_classes_gets_no_attack_by_another_loss() -> None:
    flagged = [MASKED[0].model_copy(update={"id": check}) for check in ("C14", "C1")]
    assert "other_loss_linf_0_1" in stronger(flagged, {"pgd": PGD}, BUDGET)
    for head in ("binary", "multi_label"):
        assert "other_loss_linf_0_1" not in stronger(flagged, {"pgd": PGD}, BUDGET, head)


def test_an_answer_that_is_there_already_is_not_given_twice() -> None:
    first = stronger(MASKED, {"pgd": PGD}, BUDGET)
    assert set(first) == {f"{kind}_linf_0_1" for kind in ("more_steps", "adaptive", "black_box", "bpda", "transfer")}
    known = {"pgd": PGD, **{name: AttackEntry.model_validate(entry) for name, entry in first.items()}}
    assert stronger(MASKED, known, BUDGET) == {}


@pytest.mark.slow
def test_the_answers_break_a_model_whose_gradient_has_the_wrong_sign(digits_subject: Subject) -> None:
    from dataclasses import replace

    few = digits_subject.subset(digits_subject.clean_correct.nonzero().flatten()[:30])
    liar = replace(few, classifier=replace(few.classifier, module=wrong_sign(few.classifier.module), digest="liar"))
    weak = assess("pgd", PGD, BUDGET, liar).metrics["attack_success_rate"]
    assert weak < 0.1
    for name, entry in stronger(MASKED, {"pgd": PGD}, BUDGET).items():
        if name.startswith("more_steps"):  # more steps along a wrong gradient break nothing more
            continue
        alone = AttackEntry.model_validate({**entry, "on": None})
        assert assess(name, alone, BUDGET, liar).metrics["attack_success_rate"] > weak + 0.1, name


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = "# mine\nbudget: {norm: Linf, epsilon: 0.1}\nattacks:\n  pgd: {library: torchattacks, algorithm: PGD}  # plain\n"
    (tmp_path / "params.yaml").write_text(f"data: {{source: digits}}\nmodel: {{source: train}}\n{text}")
    write_json({"kwargs": {"checks": [row.model_dump(mode="json") for row in MASKED]}}, SANITY / "metadata.json")
    return tmp_path / "params.yaml"


def test_entries_are_added_and_comments_stay(project: Path) -> None:
    add_to(project, stronger(MASKED, {"pgd": PGD}, BUDGET))
    text = project.read_text()
    assert "# mine" in text
    assert "# plain" in text
    assert "bpda_linf_0_1:" in text


def test_quotes_stay_without_which_dvc_reads_no_reference_in_a_map_on_a_line(project: Path) -> None:
    text = project.read_text().replace("{source: train}", '{source: state_dict, path: net.pt, factory: "nets:Net"}')
    project.write_text(text)
    add_to(project, stronger(MASKED, {"pgd": PGD}, BUDGET))
    assert 'factory: "nets:Net"' in project.read_text()


def test_a_dry_run_shows_the_lines_and_writes_nothing(project: Path) -> None:
    before = project.read_text()
    found = CliRunner().invoke(cli, ["strengthen", "--dry-run"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    assert "black_box_linf_0_1" in found.output
    assert project.read_text() == before


def test_an_explanation_ends_with_what_to_run(project: Path) -> None:
    found = CliRunner().invoke(cli, ["sanity", "--explain", "D15"], env={"COLUMNS": "200"})
    assert "windtunnel strengthen" in found.output
    assert "survivors_of" in found.output
    assert "survivors_of" not in CliRunner().invoke(cli, ["sanity", "--explain", "F1"], env={"COLUMNS": "200"}).output


def test_an_explanation_says_where_what_to_run_is_there_already(project: Path) -> None:
    params = load_params()
    add_to(project, stronger(MASKED, params.attacks, params.budget))
    asked = {
        name: CliRunner().invoke(cli, ["sanity", "--explain", name], env={"COLUMNS": "200"}).output
        for name in ("D15", "F1")
    }
    assert "Nothing to add: the attacks that would settle it are in params.yaml already" in asked["D15"]
    assert "Nothing to add" not in asked["F1"]


def test_the_lines_are_yaml_of_a_params_file() -> None:
    from ruamel.yaml import YAML

    entries = stronger(MASKED, {"pgd": PGD}, BUDGET)
    assert YAML(typ="safe").load(lines_of(entries)) == {"attacks": entries}


def test_a_student_answers_as_the_model_where_it_was_taught(digits_subject: Subject) -> None:
    from windtunnel.assessments.attacks.calls import LibraryCall
    from windtunnel.assessments.attacks.standins import student_of

    data = digits_subject.dataset.subset(torch.arange(60))
    call = LibraryCall(nn.Module, {}, data.inputs, data.targets, None, {})
    student = student_of(call, digits_subject.classifier.module)
    same = student(data.inputs).argmax(1) == digits_subject.clean_predictions[:60]
    assert float(same.double().mean()) > 0.9
