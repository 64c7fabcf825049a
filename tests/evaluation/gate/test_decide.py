"""The gate: which numbers let a model through, alone and beside the champion, and what is said of one that fails."""

import json

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from windtunnel.assessments.attacks.preflight import preflight
from windtunnel.cli.gate import gate as gate_command
from windtunnel.core.errors import UserError
from windtunnel.evaluation.gate.decide import decide, flatten, regression_mismatch, with_named
from windtunnel.evaluation.gate.table import failing, markdown, sentence
from windtunnel.evaluation.validate import validate
from windtunnel.operations.resolve.build import entry_of_gate
from windtunnel.params.results import Gate
from windtunnel.records.files import write_json
from windtunnel.records.gate import (
    ConditionStatus,
    Decision,
    Origin,
    OutcomeRecord,
    Outcomes,
    Shares,
    gate_json,
    read_record,
    write_record,
)
from windtunnel.records.layout import GATE
from windtunnel.records.sandwich import DrawRecord, Layer
from windtunnel.reporting.ci_reports import cases_of_gate
from windtunnel.reporting.report.sections.sanity import gate_line

METRICS = {
    "clean": {"accuracy": 0.97},
    "worst_case": {"accuracy": 0.4, "accuracy_ci_low": 0.33, "accuracy_ci_high": 0.47},
}
WORST = "worst_case/accuracy"


def record(held: str, protocol: str = "p", **origin: str) -> OutcomeRecord:
    return OutcomeRecord(
        "m", tuple(f"s{i}" for i in range(len(held))), {WORST: Outcomes(protocol, held)}, Origin(**origin)
    )


def evaluated(gate: Gate, held: str = "1" * 200, champion: OutcomeRecord | None = None, failures: tuple[str, ...] = ()):
    return decide(gate, METRICS, record(held), champion, failures)


def test_flat_names_join_group_and_metric():
    assert flatten({"a": {"b": 1, "c": {"d": 2.5}}, "text": "x", "flag": True}) == {"a/b": 1.0, "a/c/d": 2.5}


@pytest.mark.parametrize(
    ("threshold", "decision"), [(0.39, Decision.PASSED), (0.4, Decision.PASSED), (0.41, Decision.FAILED)]
)
def test_a_minimum_is_the_smallest_value_allowed(threshold, decision):
    result = evaluated(Gate(minimum={WORST: threshold}))
    assert result.decision is decision
    assert result.conditions[-1].interval == (0.33, 0.47)
    assert result.conditions[-1].holds is (decision is Decision.PASSED)


def test_a_condition_says_what_its_value_is_of():
    """On the terminal, as Markdown, in gate.json and in JUnit."""
    outcomes = {
        WORST: Outcomes("p", "11-" * 20, "Linf", 0.06),
        "clean/accuracy": Outcomes("q", "1" * 60),
        "l2/adversarial_accuracy": Outcomes("r", "1" * 60, "L2", None),
    }
    metrics = {**METRICS, "l2": {"adversarial_accuracy": 0.9, "attack_success_rate": 0.1}}
    gate = Gate(
        minimum=dict.fromkeys((WORST, "clean/accuracy", "l2/adversarial_accuracy", "l2/attack_success_rate"), 0.1)
    )
    result = decide(gate, metrics, OutcomeRecord("m", tuple(map(str, range(60))), outcomes))
    of = {row.name: row.basis for row in result.conditions if row.name in gate.minimum}
    assert list(of.values()) == ["Linf 0.06, n 40 of 60", "n 60", "L2 without bound, n 60", "L2 without bound, n 60"]
    first = Layer(
        norm="Linf",
        epsilon=0.06,
        n=60,
        n_attacked=40,
        n_examined=0,
        draws=(DrawRecord(name="a", n=40, selection="first"),),
    )
    refused = decide(
        gate, metrics, OutcomeRecord("m", tuple(map(str, range(60))), outcomes), layers=[first]
    ).conditions[-4]
    assert refused.basis == "Linf 0.06, n 40 of 60, the first samples, no unbiased estimate"
    assert "| worst_case/accuracy | Linf 0.06, n 40 of 60 | 0.4 |" in markdown(result)
    assert gate_json(result)["conditions"][-4]["basis"] == "Linf 0.06, n 40 of 60"
    assert "found 0.4 [0.330, 0.470] (Linf 0.06, n 40 of 60)" in cases_of_gate(result)[-4].reason


def test_too_few_samples_fail_the_gate():
    assert evaluated(Gate(minimum_samples=201)).decision is Decision.FAILED


def test_a_hard_failure_outweighs_every_good_number():
    result = evaluated(Gate(minimum={"clean/accuracy": 0.5}), failures=("digits-7 verified and broken",))
    assert result.decision is Decision.UNSOUND


def test_a_metric_that_this_run_lacks_fails_its_condition_and_breaks_no_graph():
    result = evaluated(Gate(minimum={"worst_case/acuracy": 0.3}))
    assert result.decision is Decision.FAILED
    assert "did you mean worst_case/accuracy?" in result.conditions[-1].reason


def layer(n_attacked: int, *selections: str) -> Layer:
    draws = [DrawRecord(name=f"pgd{i}", n=n_attacked, selection=how) for i, how in enumerate(selections)]
    return Layer(norm="Linf", epsilon=0.1, n=200, n_attacked=n_attacked, n_examined=0, draws=draws)


@pytest.mark.parametrize("gate", [Gate(minimum={WORST: 0.1}), Gate(maximum_regression={WORST: 0.05})])
@pytest.mark.parametrize(
    ("known", "line"),
    [
        (layer(0), "attacks: {pgd: {library: torchattacks, algorithm: PGD, budget: {norm: Linf, epsilon: 0.1}}}"),
        (layer(5, "first"), "attacks.pgd0.samples.selection: random"),
    ],
)
def test_a_worst_case_without_an_estimate_is_refused_with_the_line_to_add(gate, known, line):
    result = decide(gate, METRICS, record("1" * 200), None, (), [known])
    assert (result.decision, result.exit_code) == (Decision.UNSOUND, 20)
    assert result.conditions[-1].status is ConditionStatus.REFUSED
    assert line in result.conditions[-1].reason
    assert "no unbiased estimate" in sentence(result)
    assert [case.result for case in cases_of_gate(result)][-1] == "failed"
    assert failing(result)[-1].endswith(result.conditions[-1].reason)


@pytest.mark.parametrize("selections", [("all",), ("random",), ("stratified",), ("first", "random")])
def test_an_estimate_from_a_draw_that_is_not_of_the_first_is_judged(selections):
    assert (
        decide(Gate(minimum={WORST: 0.1}), METRICS, record("1" * 200), layers=[layer(50, *selections)]).exit_code == 0
    )


TIGHT = "worst_case/tight/accuracy"


def with_tight(held: str) -> OutcomeRecord:
    return OutcomeRecord("m", record(held).samples, {WORST: Outcomes("p", "1" * len(held)), TIGHT: Outcomes("t", held)})


@pytest.mark.parametrize(
    ("at_tight", "line"),
    [
        ([], "no attack ran at the budget 'tight', so there is no worst case."),
        (
            [layer(0).model_copy(update={"name": "tight", "norm": "L2"})],
            "algorithm: PGDL2, budget: {norm: L2, epsilon: 0.1}",
        ),
        ([layer(5, "first").model_copy(update={"name": "tight"})], "attacks.pgd0.samples.selection: random"),
    ],
)
def test_a_named_budget_without_an_estimate_is_refused_whatever_the_global_one_has(at_tight, line):
    metrics, layers = {**METRICS, "worst_case": {"tight": {"accuracy": 0.8}}}, [layer(200, "all"), *at_tight]
    result = decide(Gate(minimum={TIGHT: 0.1}), metrics, with_tight("1" * 5 + "-" * 195), layers=layers)
    assert (result.exit_code, result.conditions[-1].status) == (20, ConditionStatus.REFUSED)
    assert line in result.conditions[-1].reason


def test_a_named_budget_has_samples_of_its_own():
    layers = [layer(5, "first"), layer(200, "all").model_copy(update={"name": "tight"})]
    few = OutcomeRecord(
        "m", record("1" * 200).samples, {WORST: Outcomes("p", "1" * 5 + "-" * 195), TIGHT: Outcomes("t", "1" * 200)}
    )
    metrics = {"worst_case": {"tight": {"accuracy": 0.8, "accuracy_ci_low": 0.7}}}
    gate = Gate(minimum={TIGHT: 0.1, f"{TIGHT}_ci_low": 0.1}, minimum_samples=200)
    result = decide(gate, metrics, few, layers=layers)
    assert result.exit_code == 0
    assert [row.basis for row in result.conditions[2:]] == ["n 200", "n 200"]


def test_the_number_of_samples_is_that_of_the_metric():
    few = record("1" * 5 + "-" * 195)
    result = decide(Gate(minimum={WORST: 0.1}, minimum_samples=50), METRICS, few, layers=[layer(5, "random")])
    assert result.decision is Decision.FAILED
    assert result.conditions[0].reason == "worst_case/accuracy is of 5 samples, which are too few"
    clean = decide(Gate(minimum={"clean/accuracy": 0.1}, minimum_samples=50), METRICS, few, layers=[layer(5, "random")])
    assert clean.decision is Decision.PASSED


def test_an_empty_gate_passes_and_says_that_no_condition_is_set():
    result = evaluated(Gate())
    assert (result.exit_code, result.conditions) == (0, ())
    assert sentence(result) == "no condition is set"
    assert [case.result for case in cases_of_gate(result)] == ["skipped"]
    assert (gate_line(result).severity, "no condition is set" in gate_line(result).text.lower()) == ("none", True)
    assert "passed" not in gate_line(result).text
    assert evaluated(Gate(), failures=("unsound",)).exit_code == 20


def test_without_a_champion_the_comparison_is_not_applicable():
    result = evaluated(Gate(maximum_regression={WORST: 0.05}, minimum={WORST: 0.1}))
    assert result.exit_code == 0
    assert result.conditions[-1].status is ConditionStatus.NOT_APPLICABLE
    assert "not applicable, no champion: worst_case/accuracy vs champion" in sentence(result)
    case = cases_of_gate(result)[-1]
    assert (case.result, case.reason) == ("skipped", "not applicable, no champion to compare with")
    assert "Not applicable, no champion" in gate_line(result).text


# --- against the champion ---

REGRESSION = Gate(maximum_regression={WORST: 0.05})


def test_an_equal_model_passes_and_a_worse_one_is_not_with_the_reason():
    champion = record("1" * 150 + "0" * 50, model="m", version="3")
    equal = evaluated(REGRESSION, "1" * 148 + "0" * 2 + "1" * 2 + "0" * 48, champion)
    assert equal.decision is Decision.PASSED
    assert equal.conditions[-1].value == 0
    assert equal.conditions[-1].reason == "2 gained, 2 lost of 200"
    worse = evaluated(REGRESSION, "1" * 120 + "0" * 80, champion)
    assert worse.decision is Decision.FAILED
    assert worse.conditions[-1].value == pytest.approx(-0.15)
    assert worse.conditions[-1].reason.startswith("0 gained, 30 lost of 200: a loss of ")
    assert worse.champion == Origin(model="m", version="3")


def test_a_better_model_passes():
    assert evaluated(REGRESSION, "1" * 200, record("1" * 150 + "0" * 50)).decision is Decision.PASSED


def test_the_same_point_estimate_on_too_few_samples_shows_nothing_and_says_how_many_would():
    result = evaluated(REGRESSION, "1" * 40, record("1" * 40))
    assert result.decision is Decision.FAILED
    assert "even equal outcomes need 52 samples" in result.conditions[-1].reason
    assert evaluated(REGRESSION, "1" * 52, record("1" * 52)).decision is Decision.PASSED


def test_the_first_model_has_nobody_to_lose_against():
    result = evaluated(REGRESSION)
    assert result.decision is Decision.PASSED
    assert result.champion is None
    assert result.conditions[-1].reason == "no champion to compare with"


@pytest.mark.parametrize(
    "champion",
    [record("1" * 200, protocol="other"), record("1" * 199), OutcomeRecord("m", record("1" * 200).samples, {})],
)
def test_a_champion_of_another_protocol_is_refused_and_never_compared(champion):
    result = evaluated(REGRESSION, champion=champion)
    assert result.decision is Decision.FAILED
    assert result.conditions[-1].value is None
    assert "--reassess" in result.conditions[-1].reason
    assert regression_mismatch(REGRESSION, record("1" * 200), champion) == [WORST]


def test_samples_that_only_one_of_the_two_was_assessed_on_do_not_count():
    result = evaluated(REGRESSION, "1" * 100 + "-" * 100, record("-" * 30 + "1" * 170))
    assert result.conditions[-1].reason == "0 gained, 0 lost of 70"


# --- corruptions: many images of each sample ---

CORRUPTED = "common/corrupted_accuracy"
OF_CORRUPTED = Gate(maximum_regression={CORRUPTED: 0.05})


def corrupted(right: list[int | None], protocol: str = "p", **origin: str) -> OutcomeRecord:
    names = tuple(f"s{i}" for i in range(len(right)))
    return OutcomeRecord("m", names, {CORRUPTED: Shares(protocol, tuple(right), 10)}, Origin(**origin))


def test_corrupted_accuracies_are_paired_sample_by_sample_and_the_gate_says_what_it_compared():
    champion = corrupted([8] * 100 + [2] * 100, version="3")
    better = decide(OF_CORRUPTED, METRICS, corrupted([9] * 100 + [2] * 100), champion).conditions[-1]
    assert better.holds
    assert better.value == pytest.approx(0.05)
    assert better.reason == "mean over 10 images of each sample: better on 100, worse on 0 of 200"
    # As many images are lost as before are gained, yet on other samples: the same accuracy.
    moved = decide(OF_CORRUPTED, METRICS, corrupted([7] * 50 + [9] * 50 + [2] * 100), champion).conditions[-1]
    assert moved.holds
    assert moved.value == pytest.approx(0)
    worse = decide(OF_CORRUPTED, METRICS, corrupted([7] * 100 + [2] * 100), champion)
    assert worse.decision is Decision.FAILED
    assert worse.conditions[-1].value == pytest.approx(-0.05)
    assert worse.conditions[-1].reason.startswith(
        "mean over 10 images of each sample: better on 0, worse on 100 of 200: a loss of 0.0627 cannot"
    )


def test_images_of_one_sample_are_one_sample():
    """Ten images of each of 20 samples are no 200 samples: equal outcomes of 20 samples show nothing."""
    result = decide(OF_CORRUPTED, METRICS, corrupted([8] * 20), corrupted([8] * 20))
    assert result.decision is Decision.FAILED
    assert "even equal outcomes need 52 samples" in result.conditions[-1].reason


def test_corrupted_samples_that_only_one_of_the_two_was_assessed_on_do_not_count():
    one, two = corrupted([8] * 100 + [None] * 100), corrupted([None] * 30 + [8] * 170)
    assert decide(OF_CORRUPTED, METRICS, one, two).conditions[-1].reason.endswith("worse on 0 of 70")
    alone = decide(OF_CORRUPTED, METRICS, corrupted([8, None]), corrupted([None, 8])).conditions[-1]
    assert alone.reason == "no sample was assessed under both"


def test_a_suite_of_other_settings_is_another_protocol():
    champion = corrupted([8] * 200, protocol="other")
    assert "--reassess" in decide(OF_CORRUPTED, METRICS, corrupted([8] * 200), champion).conditions[-1].reason
    assert regression_mismatch(OF_CORRUPTED, corrupted([8] * 200), champion) == [CORRUPTED]


# --- the record ---


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    several = {WORST: Outcomes("p", "10-1"), CORRUPTED: Shares("q", (3, None, 0, 10), 10)}
    written = OutcomeRecord("m", ("a", "b", "c", "d"), several, Origin(version="2"))
    write_record(written, tmp_path / "r.json")
    assert read_record(tmp_path / "r.json") == written


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", '{"model_digest": "m", "samples": ["a"], "outcomes": {"x": {"protocol": "p", "held": "11"}}}',
     '{"model_digest": "m", "samples": ["a"], "outcomes": {"x": {"protocol": "p", "held": "2"}}}',
     '{"model_digest": "m", "samples": ["a"], "outcomes": {"x": {"protocol": "p"}}}',
     '{"model_digest": "m", "samples": ["a"], "outcomes": {"x": {"protocol": "p", "right": [3], "images": 2}}}',
     '{"model_digest": "m", "samples": ["a"], "outcomes": {"x": {"protocol": "p", "right": 3, "images": 2}}}',
     '{"model_digest": "m", "samples": ["a"], "outcomes": {"x": {"protocol": "p", "right": ["1"], "images": 2}}}'],
)  # fmt: skip
def test_a_damaged_record_is_one_line(tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(UserError, match=r"r\.json: not a record of outcomes"):
        read_record(tmp_path / "r.json")


# --- params: refused before anything is computed ---

PARAMS = {
    "data": {}, "model": {}, "budget": {"norm": "Linf", "epsilon": 0.1},
    "attacks": {"pgd": {"library": "torchattacks", "algorithm": "PGD"}},
    "corruptions": {"blur": {"algorithm": "gaussian_blur"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("gate", "line"),
    [
        ({"minimum": {"worst_case/acuracy": 0.3}}, "Did you mean 'worst_case/accuracy'?"),
        ({"minimum": {"certified/accuracy": 0.3}}, "'certified/accuracy' is not a metric of this run"),
        ({"maximum_regression": {"pgd/adversarial_acuracy": 0.1}}, "Did you mean 'pgd/adversarial_accuracy'?"),
        ({"maximum_regression": {"blur/mean_corruption_error": 0.1}}, "is no mean over samples"),
        ({"maximum_regression": {"clean/accuracy": 0}}, "greater than 0"),
        ({"non_inferiority": {"method": "tang"}}, "Did you mean 'tango'?"),
        ({"non_inferiority": {"alpha": 0.5}}, "less than 0.5"),
    ],
)
def test_a_slip_in_the_gate_is_one_line_with_the_nearest_match(gate, line):
    with pytest.raises(UserError) as caught:
        validate({**PARAMS, "gate": gate})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "budget",
    [
        *({"norm": norm, "epsilon": 8 / 255} for norm in ("Linf", "L2", "L1")),
        {"norm": "L0", "epsilon": 5.0},
        {"rotation": 12.5, "brightness": 8 / 255, "border": "reflect"},
    ],
    ids=["Linf", "L2", "L1", "L0", "transformation"],
)
def test_the_attack_that_is_proposed_for_a_named_budget_is_accepted_at_it(digits_subject, budget):
    """The gate gets the norm of a budget at which nothing ran from the resolved params."""
    content = {**PARAMS, "budgets": {"tight": budget}, "gate": {"minimum": {TIGHT: 0.3}}}
    entry = entry_of_gate(validate(content))
    layers = with_named([layer(200, "all")], entry["budgets"])
    result = decide(Gate.model_validate(entry["gate"]), METRICS, record("1" * 200), layers=layers)
    proposed = YAML(typ="safe").load(result.conditions[-1].reason.partition("Add attacks: ")[2])
    params = validate({**content, "attacks": proposed})
    (attack,) = params.attacks.values()
    preflight("attacks.it", attack, params.budget, digits_subject.classifier, digits_subject.dataset)
    effective, named = attack.budget.over(params.budget), params.budgets["tight"]
    assert (effective.norm, effective.epsilon) == (named.norm, named.epsilon)
    assert with_named([layer(0).model_copy(update={"name": "tight"})], entry["budgets"])[1:] == []
    assert "budgets" not in entry_of_gate(validate(PARAMS))

    names = ["clean/accuracy", "worst_case/accuracy_ci_low", "pgd/adversarial_accuracy", "blur/corrupted_accuracy"]
    validate({**PARAMS, "gate": {"minimum": dict.fromkeys(names, 0.1)}})
    paired = ["clean/accuracy", "worst_case/accuracy", "pgd/adversarial_accuracy", "blur/corrupted_accuracy"]
    validate({**PARAMS, "gate": {"maximum_regression": dict.fromkeys(paired, 0.1)}})


# --- the command ---


@pytest.mark.parametrize(
    ("minimum", "failures", "code"), [(0.3, (), 0), (0.5, (), 10), (0.3, ("verified and broken",), 20)]
)
def test_the_command_turns_the_decision_into_an_exit_code(tmp_path, monkeypatch, minimum, failures, code):
    monkeypatch.chdir(tmp_path)
    write_json(gate_json(evaluated(Gate(minimum={WORST: minimum}), failures=failures)), GATE)
    for options in ([], ["--markdown"]):
        done = CliRunner().invoke(gate_command, options)
        assert done.exit_code == code, done.output
        assert all(line in done.output for line in failures)
    assert f"{WORST} | n 200 | 0.4 | ≥ {minimum}" in done.output
    assert json.loads(GATE.read_text())["exit_code"] == code


@pytest.mark.parametrize("content", [None, "{", '{"conditions": []}', '{"exit_code": 0, "conditions": [{}]}'])
def test_a_missing_or_damaged_result_is_infrastructure(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        GATE.parent.mkdir()
        GATE.write_text(content)
    done = CliRunner().invoke(gate_command)
    assert done.exit_code == 30
    assert "run dvc repro" in done.output
