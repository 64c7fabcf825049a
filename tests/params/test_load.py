from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.boundary.params_file import read_params
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import UserError
from windtunnel.evaluation.validate import validate, validated_params
from windtunnel.params.entry import parse_number
from windtunnel.params.load import budget_names, check_whole, validate_schema
from windtunnel.params.model import Model
from windtunnel.params.schema import Params

ROOT = Path(__file__).parents[2]
MINIMAL = {"data": {}, "model": {}, "budget": {"epsilon": 0.1}}


def refusal(**changes):
    with pytest.raises(UserError) as caught:
        validate({**MINIMAL, **changes})
    return str(caught.value)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_fraction_is_rounded_once(numerator, denominator):
    assert parse_number(f"{numerator}/{denominator}") == float(Fraction(numerator, denominator))


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), ("1e-3", 1e-3), (0.1, 0.1), (3, 3.0), (" 4 / 255 ", 4 / 255)]
)
def test_numbers_as_people_write_them(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize("text", ["much", "1/0", "nan", "inf", True, None, [1], "8/255/2", ""])
def test_what_is_no_number_is_refused_with_what_is(text):
    with pytest.raises(ValueError, match=r"8/255|finite"):
        parse_number(text)


def test_yaml_is_read_as_dvc_reads_it(tmp_path):
    import dvc.utils.serialize as dvc_reader

    file = tmp_path / "params.yaml"
    file.write_text("data: {}\nmodel: {train: {learning_rate: 1e-3}}\nbudget: {epsilon: 8/255}\n")
    ours, theirs = validated_params(file), dvc_reader.load_yaml(str(file))
    assert ours.model.train.learning_rate == theirs["model"]["train"]["learning_rate"] == 0.001
    assert ours.budget.epsilon == 8 / 255
    assert theirs["budget"]["epsilon"] == "8/255"


def test_a_wrong_key_is_answered_with_the_nearest():
    assert "Did you mean 'epochs'?" in refusal(model={"train": {"epoch": 3}})
    assert "Did you mean 'attacks'?" in refusal(atacks={})


def test_an_epsilon_as_text_names_key_value_and_what_is_allowed():
    assert refusal(budget={"epsilon": "big"}) == (
        "params: budget.epsilon: 'big' is not a number; write it as 0.03, 1e-3 or 8/255"
    )


@pytest.mark.parametrize("epsilon", [-0.1, 0])
def test_an_epsilon_must_be_positive(epsilon):
    assert "budget.epsilon" in refusal(budget={"epsilon": epsilon})


def test_a_named_budget_may_be_referred_to_and_a_wrong_name_is_answered():
    named = {"tight": {"epsilon": "2/255"}}
    for reference in ("tight", "${budgets.tight}"):
        assert validate({**MINIMAL, "budget": reference, "budgets": named}).budget.epsilon == 2 / 255
    assert "Did you mean 'tight'?" in refusal(budget="tigth", budgets=named)


def test_an_unknown_algorithm_is_answered_with_the_nearest():
    line = refusal(attacks={"pgd": {"library": "torchattacks", "algorithm": "PDG"}})
    assert "attacks.pgd.algorithm: 'PDG'" in line
    assert "Did you mean 'PGD'?" in line


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "xpu", "xpu:0", "mps"])
def test_every_device_of_torch_that_computes_may_be_named(device):
    assert validate({**MINIMAL, "device": device}).device == device


@pytest.mark.parametrize(
    ("device", "says"), [("cude", "'cude' is not a device. Did you mean 'cuda'"), ("cpu:one", "a number follows cuda")]
)
def test_a_device_that_is_none_is_refused_when_params_are_read(device, says):
    with pytest.raises(UserError, match=f"device: .*{says}"):
        validate({**MINIMAL, "device": device})


def test_a_name_is_one_directory():
    pgd = {"library": "torchattacks", "algorithm": "PGD"}
    assert "reserved" in refusal(attacks={"clean": pgd})
    assert "not a name" in refusal(attacks={"a/b": pgd})


def test_every_mistake_is_listed_not_only_the_first():
    lines = refusal(budget={"epsilon": "x"}, atacks={}, seed=-1).splitlines()
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("content", "says"), [("a: [1", "not YAML"), ("- 1\n", "must be a map"), ("a: 1\na: 2\n", "duplicate")]
)
def test_a_file_that_is_no_params_is_one_line(tmp_path, content, says):
    file = tmp_path / "params.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=says) as caught:
        validated_params(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "file", [ROOT / "params.yaml", *ROOT.glob("docs/examples/*/params.yaml")], ids=lambda f: f.parent.name
)
def test_our_own_files_have_every_key_that_dvc_reads(file):
    check_whole(file, read_params(file))


def test_a_key_that_is_left_out_is_named_with_the_line_to_add(tmp_path):
    raw = read_params(ROOT / "params.yaml")
    del raw["queries"], raw["seed"], raw["tracking"]  # no stage of DVC's reads `tracking`
    with pytest.raises(
        UserError, match=r"every key.*Add the lines: seed: 0 \| queries: \{\}; `windtunnel upgrade` does$"
    ):
        check_whole(tmp_path / "params.yaml", raw)


def test_a_missing_file_says_where_to_be():
    with pytest.raises(UserError, match="no such file"):
        validated_params(__import__("pathlib").Path("nowhere/params.yaml"))


def test_attacks_on_the_survivors_of_each_other_are_refused_when_params_are_read():
    fgsm = {"library": "torchattacks", "algorithm": "FGSM"}
    attacks = {"a": {**fgsm, "on": {"survivors_of": ["b"]}}, "b": {**fgsm, "on": {"survivors_of": ["a"]}}}
    assert "a circle" in refusal(attacks=attacks)
    validate({**MINIMAL, "attacks": {**attacks, "b": fgsm}})


def test_entries_of_two_families_that_build_on_each_other_are_refused():
    fgsm, crown = {"library": "torchattacks", "algorithm": "FGSM"}, {"library": "auto-LiRPA", "algorithm": "crown"}
    attacks = {"a": {**fgsm, "on": {"uncertified_by": ["v"]}}}
    verification = {"v": {**crown, "on": {"survivors_of": ["a"]}}}
    assert "a circle, " in refusal(attacks=attacks, verification=verification)
    validate({**MINIMAL, "attacks": attacks, "verification": {"v": crown}})


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ({}, "attacks.a.on: names no entry"),
        ({"uncertified_by": []}, "attacks.a.on.uncertified_by"),
        ({"uncertified_by": ["b"]}, "attacks.a.on.uncertified_by: 'b' is not an entry of verification"),
        ({"uncertified_by": ["s"]}, "attacks.a.on.uncertified_by: s certifies a smoothed model"),
        ({"survivors_of": ["a"]}, "attacks.a.on.survivors_of: 'a' is not another entry of attacks"),
        (
            {"corrupted_by": ["fogs"]},
            "attacks.a.on.corrupted_by: 'fogs' is not an entry of corruptions. Did you mean 'fog'?",
        ),
        (
            {"corrupted_by": ["fog/fog-2"]},
            "attacks.a.on.corrupted_by: 'fog-2' is not a corruption and severity of corruptions.fog",
        ),
        ({"corrupted_by": ["few"]}, "attacks.a.on.corrupted_by: corruptions.few has 5 samples; take its samples away"),
        (
            {"corrupted_by": ["dropped"]},
            "corruptions.dropped keeps the images of 3 samples; add storage: {inputs: all} to it",
        ),
        ({"corrupted_by": ["fog"], "survivors_of": ["b"]}, "attacks.a.on.survivors_of: b is run on other images"),
        ({"survivors_of": ["c"]}, "attacks.a.on.survivors_of: c is run on other images"),
    ],
)
def test_what_an_entry_builds_on_is_checked_when_params_are_read(on, says):
    fgsm = {"library": "torchattacks", "algorithm": "FGSM"}
    smoothing, fog = {"library": "windtunnel", "algorithm": "smoothing"}, {"algorithm": "fog"}
    attacks = {"a": {**fgsm, "on": on}, "b": fgsm, "c": {**fgsm, "on": {"corrupted_by": ["fog"]}}}
    suites = {"fog": fog, "few": {**fog, "samples": {"n": 5}}, "dropped": {**fog, "storage": {"inputs": 3}}}
    message = refusal(attacks=attacks, verification={"s": smoothing}, corruptions=suites)
    assert says in message
    assert "\n" not in message


def test_a_mistake_in_a_named_budget_is_one_line_with_its_key():
    fgsm = {"library": "transformations", "algorithm": "grid", "budget": "turned"}
    message = refusal(budgets={"turned": {"rotation": "ten"}}, attacks={"a": fgsm})
    assert message.count("\n") == 0
    assert "budgets.turned: rotation: 'ten'" in message


def test_a_border_is_part_of_the_name_of_a_budget():
    turn = {"library": "transformations", "algorithm": "grid"}
    blocks = ({"rotation": 10}, {"rotation": 10, "border": "zeros"}, {"rotation": 10, "border": "reflect"})
    params = validate({**MINIMAL, "attacks": {f"a{i}": {**turn, "budget": block} for i, block in enumerate(blocks)}})
    assert sorted(budget_names(params).values()) == ["rotation-10", "rotation-10-reflect"]


def test_one_mean_counts_for_all_channels():
    model = {"source": "state_dict", "path": "w.pt", "factory": "a:b"}
    preprocess = Model.model_validate({**model, "preprocess": {"mean": 127, "std": "128"}}).preprocess
    assert (preprocess.mean, preprocess.std) == ((127.0,), (128.0,))
    for bad in (True, "much", 0):
        assert "preprocess.std" in refusal(model={**model, "preprocess": {"std": bad}})


def test_a_norm_of_an_entry_needs_an_epsilon_of_its_own():
    raw = {"data": {}, "model": {}, "budget": {"norm": "Linf", "epsilon": 0.1}}
    entry = {"library": "torchattacks", "algorithm": "CW", "budget": {"norm": "L2"}}
    with pytest.raises(
        UserError, match=r"attacks\.cw\.budget\.epsilon: is needed beside norm: L2; the global epsilon 0\.1"
    ):
        validate({**raw, "attacks": {"cw": entry}})
    validate({**raw, "attacks": {"cw": {**entry, "budget": {"norm": "L2", "epsilon": 1}}}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": {"n": True}}, "data.samples.n: True is not a number"),
        ({"resize": [True, 8]}, "data.resize: [True, 8] is not a number"),
        ({"time_limit": 1e300}, "data.time_limit: input should be less than or equal to 100000000"),
        ({"kwargs": {"n": 2**70}}, "too large"),
        ({"kwargs": {"n": 10**5000}}, "too large"),
    ],
)
def test_numbers_that_no_run_can_use_are_refused(change, words):
    with pytest.raises(UserError) as error:
        validate_schema({"data": change, "model": {}, "budget": {"epsilon": 0.1}})
    assert words in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (
            {"algorithm": "PGD", "params": {"steps": 20}},
            "is no name with its parameters; write {PGD: {steps: 20}}, or PGD alone",
        ),
        ({"PGD": None}, "write {PGD: {steps: 20}}"),
        ({"PGD": {"steps": {"a": 1}}}, "{'a': 1} is no number, text, true or false"),
        (["PGD"], "['PGD'] is no number, text, true or false"),
    ],
)
def test_a_member_of_a_list_written_otherwise_is_one_clear_line(member, words):
    entry = {"library": "torchattacks", "algorithm": "MultiAttack", "params": {"attacks": ["FGSM", member]}}
    line = refusal(attacks={"many": entry})
    assert line.startswith("params: attacks.many.params.attacks.1: ")
    assert words in line
    assert "\n" not in line


def test_a_negative_seed_of_samples_is_refused():
    samples = {"n": 5, "selection": "random", "seed": -1}
    entry = {"library": "torchattacks", "algorithm": "FGSM", "samples": samples}
    for line in (refusal(data={"samples": samples}), refusal(attacks={"fgsm": entry})):
        assert "samples.seed: input should be greater than or equal to 0, got -1" in line


def test_a_seed_beyond_64_bits_is_refused():
    with pytest.raises(UserError, match="seed: 1180591620717411303424 is too large"):
        validate_schema({"seed": 2**70, "data": {}, "model": {}, "budget": {"epsilon": 0.1}})


@pytest.mark.parametrize("head", ["softmax", {"top_k": 5}, "binary", {"labels": ["a", "b"], "label": "a"}])
def test_a_resolved_model_with_all_its_defaults_reads_back(head):
    model = Model.model_validate({"source": "train", "head": head})
    assert Model.model_validate(model.model_dump(mode="json")) == model


def test_the_json_schema_names_limits_as_editors_know_them():
    def keys(node):
        if isinstance(node, dict):
            yield from node
            yield from (key for value in node.values() for key in keys(value))
        if isinstance(node, list):
            yield from (key for value in node for key in keys(value))

    assert not {"gt", "ge", "lt", "le"} & set(keys(Params.model_json_schema()))


def test_the_keys_of_a_ball_stand_before_those_of_transformations():
    entry = {"library": "torchattacks", "algorithm": "FGSM", "budget": {"use": "small"}}
    assert "Allowed: norm, epsilon, step_size, steps, rotation" in refusal(attacks={"fgsm": entry})


def test_a_budget_written_as_in_a_notebook_is_refused_with_what_is_written_here():
    entry = {"library": "torchattacks", "algorithm": "PGD", "budget": "L2 0.5"}
    line = refusal(attacks={"pgd": entry})
    assert line.endswith(
        "is not the name of one of `budgets`; there is none; a budget itself is written {norm: L2, epsilon: 0.5}"
    )
    named = refusal(attacks={"pgd": {**entry, "budget": "tigth"}}, budgets={"tight": {"epsilon": 0.1}})
    assert "Did you mean 'tight'? Allowed: tight; a budget itself" in named


@pytest.mark.parametrize("norm", ["l2", "L2"])
def test_a_norm_is_read_in_any_case(norm):
    params = validate_schema({"data": {}, "model": {}, "budget": {"norm": norm, "epsilon": 0.1}})
    assert params.budget.norm is Norm.L2


def test_a_norm_that_no_budget_may_have_is_not_offered():
    assert refusal(budget={"norm": "L3", "epsilon": 0.1}).endswith("Allowed: Linf, L2, L1, L0")
