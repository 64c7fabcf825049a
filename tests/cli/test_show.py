"""`windtunnel show` and `windtunnel algorithms`: nothing is cut, what compares stands together, every short word is explained."""

import io
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
from windtunnel.cli import gate, output, runs, sanity, show
from windtunnel.cli.main import cli
from windtunnel.cli.output import TableColumn, print_table
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.records.gate import Condition, Decision, GateResult


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


# Of columns with a name to type, which stands without its heading where a table goes on below itself.
HEADINGS = {"assessment", "algorithm", "budget", "condition", "id", "outcome", "parameter", "run"}
WHY, BASIS = "0.07 below the floor", "Linf 8/255, n 80"
FAILED = Condition("worst_case/accuracy", 0.83, 0.9, (0.74, 0.9), holds=False, reason=WHY, basis=BASIS)
FLAGGED = FindingRecord(
    id="D15", title="An independent witness of the attacks", severity=Severity.HARD, status=Status.FAIL, value=0.25,
    threshold=0.1, reason="a second implementation breaks more", remedy="Raise attacks.pgd.budget.steps",
)  # fmt: skip


def text_at(width, draw):
    """What is printed in a terminal of that width, or elsewhere where it is None, as text."""
    console = Console(
        width=width or 10_000, force_terminal=bool(width), no_color=True, highlight=False, file=io.StringIO()
    )
    draw(console)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", ["show", "gate", "sanity", "compare"])
def test_no_word_is_cut_in_a_terminal_of_any_width(run, monkeypatch, name, width):
    monkeypatch.chdir(run)

    def draw(console):
        if name == "gate":
            gate.show_result(GateResult(Decision.FAILED, (FAILED,)), console)
        elif name == "sanity":
            sanity._print_rows([FLAGGED], console)
        else:
            module = show if name == "show" else runs
            monkeypatch.setattr(module, "table_console", lambda: console)
            words = ["show"] if name == "show" else ["compare", "reports", "workspace"]
            found = CliRunner().invoke(cli, words)
            assert found.exit_code == 0, found.output

    words = {word.strip("[](),;:'") for word in text_at(None, draw).split()}
    shown = text_at(width, draw)
    assert max(map(len, shown.splitlines())) <= width
    assert {word for word in words if len(word) < width and word not in shown} <= HEADINGS


def test_tables_of_the_commands_are_printed_in_one_place():
    commands = Path(output.__file__).parent
    assert [path.name for path in commands.glob("*.py") if "rich.table" in path.read_text()] == ["output.py"]


def test_the_catalogue_is_complete_in_a_pipe(asked):
    text = asked("algorithms", "--library", "foolbox")
    assert all(row.name in text for row in algorithms("attacks") if row.library == "foolbox")
    assert (
        asked("algorithms", "--family", "sweeps").splitlines()[-1].startswith(f"{len(algorithms('sweeps'))} algorithm")
    )
