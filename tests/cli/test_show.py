"""`windtunnel show` and `windtunnel algorithms`: nothing is cut, what compares stands together, every short word is explained."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from tests.reporting.report.conftest import edit, write_run
from windtunnel.assessments.catalogue import algorithms
from windtunnel.cli.main import cli
from windtunnel.cli.output import TableColumn, print_table


@pytest.fixture(scope="module")
def run(digits_subject, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    write_run(digits_subject.subset(torch.arange(20)), folder / "reports")
    edit(folder / "reports/robustness/fgsm/metadata.json",
         lambda m: m["semantics"]["perturbation"].update(epsilon=8 / 255))  # fmt: skip
    return folder


@pytest.fixture
def asked(run, monkeypatch):
    monkeypatch.chdir(run)

    def ask(*words):
        found = CliRunner().invoke(cli, list(words))
        assert found.exit_code == 0, found.output
        return found.output

    return ask


def test_piped_output_is_plain_and_complete(asked):
    text = asked("show")
    assert "\x1b" not in text
    assert "…" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    header = next(line for line in text.splitlines() if line.startswith("assessment"))
    assert " n " in header


def test_assessments_stand_below_their_budget_and_a_fraction_stays_one(asked):
    lines = asked("show").splitlines()
    assert "Linf 8/255" in lines
    assert lines[lines.index("Linf 8/255") + 1].startswith("fgsm")
    assert lines[lines.index("Linf 0.1") + 1].startswith("pair")


def test_every_code_and_short_name_is_explained_once(asked):
    text = asked("show")
    assert text.count("one_step_attack: ") == 1
    assert text.count("area_under_curve: ") == 1


def test_the_weakest_class_and_the_gap_have_their_intervals(asked):
    (line,) = [line for line in asked("show").splitlines() if line.startswith("weakest of")]
    assert re.fullmatch(
        r"weakest of \d+ classes at Linf 0\.1, worst case: '\d', \d+\.\d% \[.+%, .+%\] of \d+ samples; "
        r"the best class is higher by \d+\.\d points \[\d+\.\d, \d+\.\d\](; the gap may be chance)?",
        line,
    ), line
    assert "Classes at the first budget\n" in asked("show", "summary")
    assert "Classes" not in asked("show", "fgsm")


def test_intervals_of_one_assessment_stand_beside_their_metric(asked):
    text, metrics = asked("show", "clean"), json.loads(asked("show", "clean", "--json"))["metrics"]
    assert "_ci_low" not in text
    value, low, high = (metrics[f"clean_accuracy{end}"] for end in ("", "_ci_low", "_ci_high"))
    assert re.search(rf"^.?clean_accuracy +{re.escape(f'{value:.4g} [{low:.4g}, {high:.4g}]')} ", text, re.MULTILINE)


def test_of_hundreds_of_classes_the_weakest_are_listed(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "wide")
    monkeypatch.chdir(tmp_path / "wide")

    def widen(metadata):
        row = {"n": 4, "accuracy_ci_low": 0.0, "accuracy_ci_high": 1.0}
        rows = [{**row, "class": f"class-{i:03}", "accuracy": i / 300} for i in range(300)]
        metadata["metrics"].update(
            worst_case_per_class=rows, certified_per_class=rows, certified_class_gap=0.9,
            certified_class_gap_ci_low=0.2, certified_class_gap_ci_high=1.0,
        )  # fmt: skip

    edit(Path("reports/summary/metadata.json"), widen)
    text = CliRunner().invoke(cli, ["show", "summary"]).output
    assert re.findall(r"class-\d+", text) == [f"class-{i:03}" for i in range(20)]
    assert "the 20 weakest of 300 (--json has all)" in text
    lines = CliRunner().invoke(cli, ["show"]).output
    assert "weakest of 300 classes at Linf 0.1, certified: 'class-000', 0.0% [0.0%, 100.0%] of 4 samples" in lines
    assert "the best class is higher by 90.0 points [20.0, 100.0]" in lines


def test_json_holds_everything(asked):
    found = json.loads(asked("show", "--json"))
    assert found["format"] == "windtunnel.show/1"
    assert set(found["assessments"]) == {"clean", "fgsm", "pair"}
    assert found["summary"]["metrics"]["sandwich"]
    assert json.loads(asked("show", "pair", "--json"))["name"] == "pair"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_name_that_must_be_typed_is_never_cut_on_a_terminal(width):
    rows = [(row.library, row.name, row.summary or "words " * 12) for row in algorithms("attacks")]
    console = Console(width=width, force_terminal=True, no_color=True, record=True)
    print_table(
        console,
        (TableColumn("library", typed=True), TableColumn("algorithm", typed=True), TableColumn("what")),
        [("", rows)],
    )
    text = console.export_text()
    assert all(name in text for _, name, _ in rows)
    assert "…" not in text


def test_the_catalogue_is_complete_in_a_pipe(asked):
    text = asked("algorithms", "--library", "foolbox")
    assert all(row.name in text for row in algorithms("attacks") if row.library == "foolbox")
    assert (
        asked("algorithms", "--family", "sweeps").splitlines()[-1].startswith(f"{len(algorithms('sweeps'))} algorithm")
    )
