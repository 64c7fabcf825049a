"""Whole runs side by side, as text, Markdown and HTML."""

import re
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from planted import write_run

from tests.made import content
from windtunnel.cli.runs import compare as command
from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.decide import flatten
from windtunnel.records.artifacts import save_tensors
from windtunnel.records.files import read_json, write_json
from windtunnel.reporting.answers import compare_answer
from windtunnel.reporting.compare.comparison import compare_runs
from windtunnel.reporting.compare.page import document, markdown, page, render_comparison
from windtunnel.reporting.compare.runs import Run, run_in


@pytest.fixture
def pair(tmp_path):
    first = write_run(tmp_path / "narrow", [2, 2, 2, 1, 2])
    second = write_run(tmp_path / "wide", [1, 1, 1, 1, 2], epsilon=0.2)
    return [run_in(first, "narrow"), run_in(second, "wide")]


def text(comparison):
    return markdown("title", document(comparison))


def test_what_differs_is_listed_and_what_is_equal_is_counted(pair):
    comparison = compare_runs(pair)
    assert comparison.params == (("budget.epsilon", ("0.1", "0.2")),)
    assert comparison.metrics == (("pgd/adversarial_accuracy", (0.6, 0.0)),)
    assert comparison.equal_metrics == 1
    shown = text(comparison)
    assert "| pgd | Linf 0.1, n 5 / Linf 0.2, n 5 | 60.0% \\[23.1%, 88.2%\\] | 0.0% \\[0.0%, 43.4%\\] | -60.0" in shown
    assert "pgd, correct only in narrow (3): s0, s1, s2" in shown
    assert "pgd was assessed with another epsilon." in shown


def test_every_number_names_its_budget_its_samples_and_its_interval(pair):
    ends = {"pgd/adversarial_accuracy_ci_low": 0.23, "pgd/adversarial_accuracy_ci_high": 0.88}
    comparison = compare_runs([replace(pair[0], metrics={**pair[0].metrics, **ends}), pair[1]])
    row = "| pgd/adversarial\\_accuracy | Linf 0.1, n 5 / Linf 0.2, n 5 | 0.6 \\[0.23, 0.88\\] | 0 | -0.6 |"
    assert row in text(comparison)
    answer = compare_answer(comparison)
    first, second = answer.measured["pgd/adversarial_accuracy"]
    assert (first.value, first.interval, first.norm, first.epsilon, first.n) == (0.6, (0.23, 0.88), "Linf", 0.1, 5)
    assert (second.interval, second.epsilon) == (None, 0.2)
    (outcome,) = answer.against[0].pairs
    assert (outcome.norms, outcome.epsilons) == (("Linf", "Linf"), (0.1, 0.2))
    assert outcome.rate_intervals[1] == pytest.approx((0.0, 0.434), abs=1e-3)


def test_of_numbers_alone_the_n_that_they_name_is_shown():
    run = Run("old", "mlflow run", {}, {"worst_case/accuracy": 0.5, "worst_case/n": 40.0}, None)
    assert str(run.bases()["worst_case/accuracy"]) == "n 40"


def test_what_a_person_reads_first_stands_first_among_the_metrics(pair):
    """metrics.json is in the order of the alphabet; a reader asks whether to believe it, then for the sandwich."""
    written = {
        "certified": {"accuracy": 0.2, "class_gap": 0.1},
        "clean": {"accuracy": 0.9, "nll": 0.3},
        "common": {"mean_corruption_error": 0.4, "corrupted_accuracy": 0.6},
        "hard_failures": 0,
        "pgd": {"attack_success_rate": 0.5, "adversarial_accuracy": 0.4},
        "worst_case": {"accuracy": 0.3, "accuracy_ci_low": 0.2, "weakest_class_accuracy": 0.1},
    }
    other = flatten(written)
    runs = [
        replace(pair[0], metrics=other), replace(pair[1], metrics={key: value + 0.01 for key, value in other.items()})
    ]  # fmt: skip
    read = [
        "hard_failures", "worst_case/accuracy", "certified/accuracy", "clean/accuracy", "common/corrupted_accuracy",
        "pgd/adversarial_accuracy", "worst_case/weakest_class_accuracy", "certified/class_gap", "clean/nll",
        "common/mean_corruption_error", "pgd/attack_success_rate",
    ]  # fmt: skip
    (table,) = next(part for part in document(compare_runs(runs)) if part.title == "Metrics that differ").blocks
    assert [row[0] for row in table.rows] == read


def test_three_runs_are_compared_with_the_first_and_p_values_are_adjusted_for_their_number(pair, tmp_path):
    third = run_in(write_run(tmp_path / "third", [2, 2, 2, 2, 2]), "third")
    comparison = compare_runs([*pair, third])
    assert [a.run.label for a in comparison.against] == ["wide", "third"]
    assert comparison.metrics[0] == ("pgd/adversarial_accuracy", (0.6, 0.0, 0.8))
    assert comparison.against[0].adjusted == (pytest.approx(0.25),)  # 2 / 2^3, one outcome


def test_a_refused_pairing_is_said_and_the_numbers_are_shown_all_the_same(pair, tmp_path):
    other = run_in(write_run(tmp_path / "other", [2, 1, 2, 1, 2], shift=0.1), "other")
    comparison = compare_runs([pair[0], other])
    assert not comparison.against[0].pairs
    shown = text(comparison)
    assert "Not paired: pgd: the samples have the same names and other values" in shown
    assert "no paired statistics" in shown
    assert "| pgd/adversarial\\_accuracy | Linf 0.1, n 5 | 0.6 | 0.4 | -0.2 |" in shown


def with_summary(root, attacks):
    """The run with a summary whose worst case rests on these attacks: {name: algorithm}."""
    data = torch.load(root / "reports" / "robustness" / "pgd" / "robustness_data.pt")
    facts = read_json(root / "reports" / "robustness" / "pgd" / "metadata.json")
    for name, algorithm in attacks.items():
        folder = root / "reports" / "robustness" / name
        save_tensors(data, folder / "robustness_data.pt")
        mine = {"name": name, "algorithm": algorithm, "assessment_kind": "empirical_attack"}
        write_json({**facts, **mine}, folder / "metadata.json")
    summary = root / "reports" / "summary"
    save_tensors({**data, "certified_verdicts": torch.full((5,), 3)}, summary / "robustness_data.pt")
    kwargs = {**facts["kwargs"], "assessments": list(attacks), "hard_failures": []}
    metrics = {"worst_case_accuracy": 0.5, "certified_accuracy": 1.0}
    write_json(content(name="summary", metrics=metrics, kwargs=kwargs), summary / "metadata.json")
    return root


@pytest.mark.parametrize(
    ("attacks", "line"),
    [
        ({"pgd": "PGD"}, None),
        ({"pgd": "PGD", "square": "Square"}, "Not paired: worst case: square only in b."),
        ({"pgd": "APGD"}, r"Not paired: worst case: pgd is another algorithm (PGD and APGD)."),
    ],
)
def test_a_worst_case_is_paired_only_under_the_same_attacks(tmp_path, attacks, line):
    first = with_summary(write_run(tmp_path / "a", [2, 2, 2, 1, 2]), {"pgd": "PGD"})
    second = with_summary(write_run(tmp_path / "b", [2, 1, 2, 1, 2]), attacks)
    comparison = compare_runs([run_in(first, "a"), run_in(second, "b")])
    names = [p.name for p in comparison.against[0].pairs]
    assert "certified" in names
    assert ("worst case" in names) == (line is None)
    assert line is None or line in text(comparison).replace("\\", "")


def test_other_settings_of_an_ensemble_are_one_line(tmp_path):
    runs = []
    for label, steps in (("a", 10), ("b", 20)):
        root = write_run(tmp_path / label, [2, 2])
        path = root / "reports" / "robustness" / "pgd" / "metadata.json"
        calls = {f"{i} APGD": {"steps": steps, "seed": steps, **{f"k{j}": steps for j in range(8)}} for i in range(18)}
        write_json({**read_json(path), "call_kwargs": calls}, path)
        runs.append(run_in(root, label))
    lines = [line for line in text(compare_runs(runs)).splitlines() if "assessed with another" in line]
    assert len(lines) == 1
    assert lines[0].endswith("and 4 more.")


@pytest.mark.parametrize(("second", "differ"), [({"pgd": "of b"}, False), ({"pgd": "of b", "fgsm": "of b"}, True)])
def test_what_is_measured_on_the_model_is_no_setting(tmp_path, second, differ):
    """The scale of its logits, and the digest of what an earlier attack left; which attack that was is a setting."""
    runs = []
    for label, unit, earlier in (("a", 5.75, {"pgd": "of a"}), ("b", 6.77, second)):
        root = write_run(tmp_path / label, [2, 2])
        path = root / "reports" / "robustness" / "pgd" / "metadata.json"
        kwargs = {"logit_unit": unit, "tolerances": {"crown": 1e-5 * unit}, "survivors_of": earlier}
        facts = read_json(path)
        write_json({**facts, "kwargs": {**facts["kwargs"], **kwargs}}, path)
        runs.append(run_in(root, label))
    assert ("assessed with another" in text(compare_runs(runs))) is differ


def test_markdown_cells_stay_cells(pair):
    from dataclasses import replace

    shown = text(compare_runs([pair[0], replace(pair[1], label="a|b <script>")]))
    assert "a\\|b \\<script\\>" in shown
    for line in shown.splitlines():
        assert "<script>" not in line


def test_the_html_shows_the_flipped_samples_and_asks_for_nothing(pair, tmp_path):
    render_comparison(compare_runs(pair), tmp_path / "c.html")
    html = (tmp_path / "c.html").read_text()
    assert html.count("<img ") == 3 * 3  # clean, narrow, wide of the three that flipped
    assert "clean: zero" in html
    assert "narrow: zero, attack failed" in html
    assert "wide: one, attack succeeded" in html
    assert html.index("pgd, lost in wide") < html.rindex("Metrics that differ")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", html)


def test_the_command_prints_a_table_or_markdown_and_writes_html(pair, tmp_path):
    runs = [str(tmp_path / "narrow"), str(tmp_path / "wide" / "reports")]
    done = CliRunner().invoke(command, [*runs, "--html", str(tmp_path / "c.html")])
    assert done.exit_code == 0, done.output
    assert "budget.epsilon" in done.stdout
    assert (tmp_path / "c.html").is_file()
    assert "| budget.epsilon | 0.1 | 0.2 |" in CliRunner().invoke(command, [*runs, "--markdown"]).stdout


def test_results_without_params_are_compared_but_for_their_params(pair, tmp_path):
    (tmp_path / "wide" / "params.yaml").unlink()
    shown = text(compare_runs([pair[0], run_in(tmp_path / "wide", "wide")]))
    assert "Not compared: a run has no params.yaml" in shown
    assert "| pgd | Linf 0.1, n 5 / Linf 0.2, n 5 |" in shown


def test_a_directory_without_results_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match=r"^[^:]+ is no directory of results"):
        run_in(tmp_path, "x")


def test_the_page_says_first_what_became_worse_and_whether_by_chance(tmp_path):
    runs = [run_in(write_run(tmp_path / name, verdicts), name) for name, verdicts in
            (("before", [2] * 19 + [2]), ("after", [1] * 12 + [2] * 8))]  # fmt: skip
    report = page(compare_runs(runs))
    assert report.front.statement.startswith("after is worse on pgd -60.0 points, beyond chance")
    same = page(compare_runs([runs[0], runs[0]]))
    assert "No outcome of before differs" in same.front.statement
