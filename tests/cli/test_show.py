"""`windtunnel show` and `windtunnel algorithms`: nothing is cut, what compares stands together, every short word is explained."""

import json

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from tests.reporting.report.conftest import edit, write_run
from windtunnel.assessments.catalogue import algorithms
from windtunnel.cli.main import cli
from windtunnel.cli.tables import Column, print_table


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
    print_table(console, (Column("library", typed=True), Column("algorithm", typed=True), Column("what")), [("", rows)])
    text = console.export_text()
    assert all(name in text for _, name, _ in rows)
    assert "…" not in text


def test_the_catalogue_is_complete_in_a_pipe(asked):
    text = asked("algorithms", "--library", "foolbox")
    assert all(row.name in text for row in algorithms("attacks") if row.library == "foolbox")
    assert (
        asked("algorithms", "--family", "sweeps").splitlines()[-1].startswith(f"{len(algorithms('sweeps'))} algorithm")
    )
