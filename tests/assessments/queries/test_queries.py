"""Query-counted attacks: against loops that follow RobustCheck, alone and in company, counted by the model itself."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from windtunnel.assessments.queries import assess as assess_module
from windtunnel.assessments.queries.algorithms import EpsGreedyParams, cosines
from windtunnel.assessments.queries.assess import assess
from windtunnel.assessments.queries.metrics import query_metrics, success_curve
from windtunnel.assessments.queries.preflight import preflight
from windtunnel.assessments.queries.search import stream_seeds
from windtunnel.assessments.queries.table import LIBRARY, OWN
from windtunnel.boundary.models.backends import OnnxModule, PredictFunction
from windtunnel.boundary.models.load import export_onnx, import_model, load_classifier
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.subject import subject_of
from windtunnel.params.attacks import QueryEntry
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.runtime import batch_runner
from windtunnel.runtime.batch_runner import Checkpoint

BUDGET = Budget(norm=Norm.LINF, epsilon=0.15)
PARAMS = {
    "EvoBA": {"generation_size": 7, "generations": 12, "pixels_per_step": 2},
    "EpsGreedy": {"steps": 90, "patch_size": [2, 4], "epsilon": 0.2},
    "SimBA": {"steps": 40, "step_size": 0.4},
}
DCT = {"basis": "dct", "steps": 16, "step_size": 0.5, "frequencies": 0.5}
# Cheap parameters and a budget in the attack's own norm.
COUNTED = {
    "Square": ({"n_queries": 60}, {}),
    "SPSA": ({"nb_iter": 2, "nb_sample": 16}, {}),
    "OnePixel": ({"steps": 2, "popsize": 3}, {"norm": "L0", "epsilon": 3}),
    "Pixle": ({"restarts": 2, "max_iterations": 5, "x_dimensions": [2, 4], "y_dimensions": [2, 4]}, {"norm": "L0", "epsilon": 12}),
    "BoundaryAttack": ({"steps": 30}, {"norm": "L2", "epsilon": 1.5}),
    "HopSkipJumpAttack": ({"steps": 2, "max_gradient_eval_steps": 40}, {"norm": "L2", "epsilon": 1.5}),
    "GenAttack": ({"steps": 15}, {}),
}  # fmt: skip


def own(algorithm, **keys):
    return QueryEntry(algorithm=algorithm, params={**PARAMS[algorithm], **keys.pop("params", {})}, **keys)


def counted(name, **keys):
    row = next(r for (_, n), r in LIBRARY.items() if n == name)
    params, budget = COUNTED[name]
    target = {"target_classes": "next"} if name == "GenAttack" else {}
    return QueryEntry(library=row.algorithm.library, algorithm=name, params=params, budget=budget, **{**target, **keys})


EVERY = [own(name) for name in OWN] + [own("SimBA", params=DCT)] + [counted(name) for name in COUNTED]
IDS = [*OWN, "SimBA-dct", *COUNTED]


@pytest.fixture(scope="module")
def few(digits_subject):
    return digits_subject.subset(torch.arange(24))


def enough(entry, subject):
    """Fewer samples where each is attacked on its own."""
    return subject.subset(torch.arange(7)) if entry.library != "windtunnel" else subject


def run(entry, subject, name="q"):
    return assess(name, entry, BUDGET, subject)


def as_function(subject):
    """The same model as a Python `predict`, and the list in which it notes how many rows each call had."""
    module, calls = subject.classifier.module, []

    def predict(batch):
        calls.append(len(batch))
        with torch.no_grad():
            return module(torch.from_numpy(batch)).softmax(1).numpy()

    only_forward = frozenset({Capability.FORWARD})
    classifier = Classifier(PredictFunction(predict), 10, (1, 8, 8), only_forward, "digest", "function")
    return replace(subject, classifier=classifier), calls


@pytest.mark.parametrize("entry", EVERY, ids=IDS)
def test_the_queries_are_what_the_model_was_asked(few, entry):
    few = enough(entry, few)
    subject, calls = as_function(few)
    result = run(entry, subject)
    # The first query of each sample, the check of the clean image, was made by `clean`.
    assert sum(calls) == int(result.data["queries"].sum()) - len(few.dataset)
    assert (result.data["queries"] >= 1).all()
    assert (result.data["queries"][~result.data["attacked"]] == 1).all()


@pytest.mark.parametrize("entry", EVERY, ids=IDS)
def test_the_whole_entry_asks_no_more_than_its_total(few, entry):
    few = enough(entry, few)
    subject, calls = as_function(few)
    total = 31 * int(subject.clean_correct.sum())
    result = run(entry.model_copy(update={"total_queries": total}), subject)
    assert 0 < sum(calls) <= total
    assert int(result.data["queries"].max()) <= 32


def test_a_total_that_does_not_last_for_a_round_is_refused(few):
    with pytest.raises(
        UserError, match=r"total_queries: 100 for \d+ images is \d each, and a round takes 7; allow at least"
    ):
        run(own("EvoBA", total_queries=100), few)


def all_three(seed):
    return {
        "EvoBA": lambda *a: reference.evoba(*a, generation_size=7, pixels=2, generations=12),
        "EpsGreedy": lambda *a: reference.eps_greedy(
            *a, EpsGreedyParams(patch_size=(2, 4)).pixel_groups(8, 8, ""), epsilon=0.2, steps=90
        ),
        "SimBA": lambda *a: reference.simba(*a, step_size=0.4, steps=40),
    }


@pytest.mark.parametrize("algorithm", list(OWN))
def test_each_image_goes_as_in_the_peers_own_loops(few, algorithm):
    result = run(own(algorithm), few)
    loop, seeds = all_three(0)[algorithm], stream_seeds(0, "q", few.dataset.ids)
    attacked = few.clean_correct.nonzero().flatten().tolist()
    for i in attacked[:10]:
        image, queries, broken = loop(
            few.classifier.module, few.dataset.inputs[i], int(few.dataset.targets[i]), seeds[i]
        )
        assert queries == int(result.data["queries"][i])
        assert broken == (int(result.data["verdicts"][i]) == Verdict.ATTACK_SUCCEEDED)
        assert torch.equal(image, result.data["perturbed_inputs"][i])


class InDouble(torch.nn.Module):
    """A model that computes in double and answers in single precision."""

    def __init__(self, module):
        super().__init__()
        self.module = copy.deepcopy(module).double()

    def forward(self, inputs):
        return self.module(inputs.double()).float()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    algorithm=st.sampled_from([*OWN, "dct"]),
    seed=st.integers(0, 2**32 - 1),
    chosen=st.lists(st.integers(0, 23), min_size=1, max_size=6, unique=True),
    batch_size=st.integers(1, 300),
    targeted=st.booleans(),
)
def test_a_sequential_run_equals_a_batched_one(few, algorithm, seed, chosen, batch_size, targeted):
    # A processor may multiply one row by another kernel than many; in double the difference is gone after rounding.
    few = replace(few, seed=seed, classifier=replace(few.classifier, module=InDouble(few.classifier.module)))
    aims = {"target_classes": "next"} if targeted else {}
    entry = own("SimBA", params=DCT, **aims) if algorithm == "dct" else own(algorithm, **aims)
    together = run(entry.model_copy(update={"batch_size": 256}), few)
    for i in chosen:
        alone = run(entry.model_copy(update={"batch_size": batch_size}), few.subset(torch.tensor([i])))
        for key in ("queries", "perturbed_inputs", "verdicts", "perturbed_logits"):
            assert torch.equal(together.data[key][i], alone.data[key][0]), key


@pytest.mark.parametrize("name", list(COUNTED))
def test_a_librarys_attack_on_an_image_does_not_depend_on_the_others(few, name):
    entry = counted(name)
    few = enough(entry, few)
    together = run(entry, few)
    alone = run(entry, few.subset(torch.tensor([5, 2])))
    # BoundaryAttack and HopSkipJump may start from other samples, which are fewer here; noise found a start for these.
    for key in ("queries", "perturbed_inputs", "verdicts"):
        assert torch.equal(together.data[key][[5, 2]], alone.data[key]), key


@pytest.mark.parametrize("entry", EVERY, ids=IDS)
def test_successes_are_successes_and_lie_in_the_budget(few, entry):
    few = enough(entry, few)
    result = run(entry, few)
    data, won = result.data, result.data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    predictions = few.classifier.predict(data["perturbed_inputs"])
    assert torch.equal(predictions, data["perturbed_predictions"])
    wanted = data.get("target_classes")
    assert torch.equal(predictions != data["targets"] if wanted is None else predictions == wanted, won)
    assert ((data["perturbed_inputs"] >= 0) & (data["perturbed_inputs"] <= 1)).all()
    epsilon = result.semantics.perturbation.epsilon
    if epsilon is not None:
        assert (data["perturbation_distance"][won] <= epsilon * (1 + 1e-5) + 1e-6).all()


@pytest.mark.parametrize("entry", EVERY, ids=IDS)
def test_no_image_gets_more_than_max_queries(few, entry):
    limited = entry.model_copy(update={"max_queries": 23})
    assert int(run(limited, enough(entry, few)).data["queries"].max()) <= 23


def test_evoba_asks_one_check_and_whole_generations(few):
    result = run(own("EvoBA"), few)
    attacked = result.data["attacked"]
    generations, rest = np.divmod(result.data["queries"][attacked].numpy() - 1, 7)
    assert (rest == 0).all()
    assert (result.data["perturbation_distance"][attacked].numpy() <= generations * 2).all()


def test_an_elitist_evoba_never_gets_worse_and_the_original_may(few):
    def confidence(elitist):
        result = run(own("EvoBA", params={"elitist": elitist, "generations": 2, "generation_size": 1}), few)
        rows = result.data["attacked"]
        targets = few.dataset.targets[rows][:, None]
        after, before = (
            result.data[k][rows].softmax(1).gather(1, targets) for k in ("perturbed_logits", "clean_logits")
        )
        return after - before

    assert (confidence(True) <= 1e-6).all()
    assert (confidence(False) > 1e-3).any()


def test_simba_moves_at_most_its_step_along_each_direction(few):
    for params in (PARAMS["SimBA"], DCT):
        result = run(QueryEntry(algorithm="SimBA", params=params), few)
        bound = params["step_size"] * (result.data["queries"] - 1).float().sqrt()
        assert (result.data["perturbation_distance"] <= bound + 1e-5).all()
    assert torch.allclose(cosines(8) @ cosines(8).T, torch.eye(8), atol=1e-6)


class OnlyCorner(nn.Module):
    """Two classes; the second wins when the mean of the top left 4x4 pixels is above `threshold`."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        score = 8 * (x[:, :, :4, :4].mean((1, 2, 3)) - self.threshold)
        return torch.stack([-score, score], 1)


def corner_subject(threshold, n=6):
    data = Dataset(torch.zeros(n, 3, 8, 8), torch.zeros(n, dtype=torch.int64), tuple(map(str, range(n))), ("a", "b"))
    module = OnlyCorner(threshold).eval()
    return subject_of(Classifier(module, 2, (3, 8, 8), frozenset(Capability), "digest", "corner"), data)


def test_eps_greedy_finds_the_group_that_matters_and_keeps_to_it():
    result = run(
        QueryEntry(algorithm="EpsGreedy", params={"steps": 400, "patch_size": 4, "epsilon": 0.1}), corner_subject(0.3)
    )
    assert result.metrics["count_succ"] == 6
    changed = (result.data["perturbed_inputs"] != 0).any(1)
    assert not changed[:, 4:].any() and not changed[:, :, 4:].any()  # noqa: PT018
    groups = QueryEntry(algorithm="EpsGreedy", params={"groups": [int(i >= 32) for i in range(64)], "steps": 300})
    assert run(groups, corner_subject(0.3)).metrics["count_succ"] == 6


def test_no_success_gives_empty_lists_and_no_nan(few, tmp_path):
    result = run(own("EpsGreedy", params={"steps": 5}), corner_subject(2.0))
    metrics = result.metrics
    assert metrics["count_succ"] == 0
    assert metrics["count_fail"] == 6
    assert metrics["adversarial_accuracy"] == 1
    assert (
        metrics["queries_succ"] == metrics["l0_dists_succ"] == metrics["l2_dists_succ"] == metrics["indices_succ"] == []
    )
    assert not [key for key in metrics if "_succ_m" in key or key == "queries_median_censored"]
    assert metrics["queries_median_censored_status"] == "not reached"
    assert metrics["success_rate_curve"] == [0.0, 0.0]
    json.dumps(metrics, allow_nan=False)
    write_artifacts(result, tmp_path / "q", corner_subject(2.0), started=0)


def test_nothing_to_attack_gives_whole_metrics():
    wrong = corner_subject(-1.0)
    result = run(own("SimBA"), wrong)
    assert result.metrics["n_attacked"] == result.metrics["count_succ"] == result.metrics["count_fail"] == 0
    assert result.metrics["query_budgets"] == []
    assert {c.code for c in result.caveats} >= {"nothing_attacked"}


def test_the_metrics_are_robustchecks_and_come_from_the_tensors_on_disk(few, tmp_path):
    result = run(own("EvoBA", params={"generations": 4}), few)
    read = read_artifacts(write_artifacts(result, tmp_path / "q", few, started=0).directory)
    assert query_metrics(read.data) == read.metrics
    clean, perturbed = few.dataset.inputs.double().numpy(), read.tensor("perturbed_inputs").double().numpy()
    broken = (read.tensor("perturbed_predictions") != few.dataset.targets).numpy()
    right = few.clean_correct.numpy()
    won = np.flatnonzero(right & broken)
    lost = np.flatnonzero(right & ~broken)
    assert len(won) and len(lost)  # noqa: PT018
    l0 = [int((clean[i] != perturbed[i]).sum()) for i in won]
    l2 = [float(np.sqrt(((clean[i] - perturbed[i]) ** 2).sum())) for i in won]
    queries = read.tensor("queries")[won].tolist()
    m = read.metrics
    assert (m["count_succ"], m["count_fail"]) == (len(won), len(lost))
    assert (m["indices_succ"], m["indices_fail"]) == (won.tolist(), lost.tolist())
    assert (m["queries_succ"], m["l0_dists_succ"]) == (queries, l0)
    assert m["l2_dists_succ"] == pytest.approx(l2)
    assert m["adversarial_accuracy"] == len(lost) / len(right)
    for name, values in (("queries", queries), ("l0_dists", l0), ("l2_dists", l2)):
        for key, function in (("mean", np.mean), ("median", np.median), ("max", np.max)):
            assert m[f"{name}_succ_{key}"] == pytest.approx(function(values))
    assert m["l2_dists_succ_mean_pp"] == pytest.approx(np.mean(l2) / 64)


@given(st.lists(st.tuples(st.integers(1, 500), st.booleans()), min_size=1, max_size=300))
def test_the_success_curve_counts_who_broke_within_each_budget(images):
    queries, won = (torch.tensor(column) for column in zip(*images, strict=True))
    curve = success_curve(queries, won)
    budgets, rates = curve["query_budgets"], curve["success_rate_curve"]
    assert budgets == sorted(set(budgets)) and budgets[-1] == max(queries)  # noqa: PT018
    assert rates == [sum(w and q <= b for q, w in images) / len(images) for b in budgets]
    assert rates[-1] == sum(w for _, w in images) / len(images)
    pairs = zip(curve["success_rate_curve_ci_low"], rates, curve["success_rate_curve_ci_high"], strict=True)
    assert all(low <= rate + 1e-12 and rate <= high + 1e-12 for low, rate, high in pairs)


@pytest.mark.parametrize("algorithm", list(OWN))
def test_a_targeted_attack_reaches_its_targets(few, algorithm):
    more = {"generations": 60} if algorithm == "EvoBA" else {"steps": 64 if algorithm == "SimBA" else 600}
    result = run(own(algorithm, params=more, target_classes="least_likely"), few)
    aims, won = result.data["target_classes"], result.data["verdicts"] == Verdict.ATTACK_SUCCEEDED
    assert won.any()
    assert torch.equal(result.data["perturbed_predictions"][won], aims[won])
    assert result.semantics.objective == "targeted"


def test_target_is_label_means_not_attacked_and_not_broken(few):
    label = int(few.dataset.targets[few.clean_correct][0])
    result = run(own("SimBA", params={"steps": 1}, target_classes=label), few)
    same = few.dataset.targets == label
    assert not result.data["attacked"][same].any()
    assert (result.data["verdicts"][same] == Verdict.ATTACK_FAILED).all()
    assert "target_is_label" in {caveat.code for caveat in result.caveats}
    assert result.metrics["adversarial_accuracy"] >= float((same & few.clean_correct).double().mean())


def test_a_run_that_was_killed_goes_on_where_it_stood(few, monkeypatch, tmp_path):
    monkeypatch.setattr(assess_module, "UNIT", 4)
    monkeypatch.setattr(batch_runner, "WORTH_KEEPING", 0.0)
    monkeypatch.chdir(tmp_path)
    entry = own("EvoBA", batch_size=21)
    whole = run(entry, few)
    whole_queries = int(whole.data["queries"].sum())

    class Dies(nn.Module):
        def __init__(self, inner, lives):
            super().__init__()
            self.inner, self.lives, self.rows = inner, lives, 0

        def forward(self, x):
            self.rows += len(x)
            if self.rows > self.lives:
                raise KeyboardInterrupt
            return self.inner(x)

    def with_lives(lives):
        return replace(few, classifier=replace(few.classifier, module=Dies(few.classifier.module, lives)))

    with pytest.raises(KeyboardInterrupt):
        run(entry, with_lives(whole_queries // 2))
    again = with_lives(10**9)
    resumed = run(entry, again)
    for key in ("queries", "perturbed_inputs", "verdicts"):
        assert torch.equal(whole.data[key], resumed.data[key])
    assert again.classifier.module.rows < 0.8 * whole_queries
    assert not list(tmp_path.rglob("*.pt"))


def test_an_onnx_model_is_attacked_as_the_torch_one(few, tmp_path):
    path = export_onnx(few.classifier, tmp_path / "m.onnx")
    needs = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})
    onnx = Classifier(OnnxModule(path), 10, (1, 8, 8), needs, "digest", "onnx", onnx_path=path)
    entry = own("SimBA")
    preflight("queries.q", entry, BUDGET, onnx, few.dataset)
    there, here = run(entry, replace(few, classifier=onnx)), run(entry, few)
    assert (there.data["queries"] == here.data["queries"]).double().mean() > 0.8  # other kernels round otherwise


def test_a_forest_behind_a_predict_function_is_attacked(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forest_model.py").write_text(
        "from sklearn.datasets import load_digits\n"
        "from sklearn.ensemble import RandomForestClassifier\n"
        "x, y = load_digits(return_X_y=True)\n"
        "forest = RandomForestClassifier(20, random_state=0).fit(x / 16, y)\n"
        "def predict(batch):\n"
        "    return forest.predict_proba(batch.reshape(len(batch), -1))\n"
    )
    model = Model(source="function", function="forest_model:predict")
    import_model(model, None, 0, "cpu", tmp_path / "model")
    assessed = digits[0].subset(torch.arange(12))
    classifier = load_classifier(tmp_path / "model", "cpu", assessed, trust_of(model))
    entry = QueryEntry(algorithm="EvoBA", params={"generation_size": 10, "generations": 60})
    preflight("queries.q", entry, BUDGET, classifier, assessed)
    result = run(entry, subject_of(classifier, assessed))
    assert result.metrics["clean_accuracy"] == 1
    assert result.metrics["count_succ"] >= 8
    wrong = classifier.predict(result.data["perturbed_inputs"]) != assessed.targets
    assert int(wrong.sum()) == result.metrics["count_succ"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithm": "EvoBa"}, "Did you mean 'EvoBA'"),
        ({"algorithm": "EvoBA", "params": {"generation": 5}}, "Did you mean 'generations'"),
        ({"algorithm": "EvoBA", "params": {"generation_size": 0}}, "params.generation_size: input should be greater than 0, got 0"),
        ({"algorithm": "EpsGreedy", "params": {"epsilon": 1.5}}, "params.epsilon: input should be less than or equal to 1"),
        ({"algorithm": "EpsGreedy", "params": {"groups": [0, 1]}}, "2 numbers for images of 8x8; 64 are needed"),
        ({"algorithm": "EpsGreedy", "params": {"groups": "nowhere:f"}}, "cannot import 'nowhere'"),
        ({"algorithm": "SimBA", "params": {"basis": "wavelet"}}, "params.basis"),
        ({"algorithm": "SimBA", "budget": {"steps": 5}}, "budget.steps: SimBA takes it as queries.q.params.steps"),
        ({"algorithm": "EvoBA", "budget": {"epsilon": 0.06}}, "under L0 it is a number of changed values"),
        ({"algorithm": "EvoBA", "max_queries": 20}, "allow at least 31"),
        ({"algorithm": "EvoBA", "target_classes": "unlikely"}, "is not a rule for targets"),
        ({"library": "torchattacks", "algorithm": "PGD"}, "is not an algorithm of torchattacks"),
        ({"library": "torchattacks", "algorithm": "OnePixel"}, "works under L0"),
        ({"library": "foolbox", "algorithm": "GenAttack"}, "GenAttack can only aim at a class"),
        ({"library": "torchattacks", "algorithm": "Square", "max_queries": 1}, "allow at least 2"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_in_one_line(few, keys, words):
    with pytest.raises(UserError) as error:
        preflight("queries.q", QueryEntry(**keys), BUDGET, few.classifier, few.dataset)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_own_budget_bounds_what_counts_as_success(few):
    free = run(own("EvoBA"), few)
    bounded = run(own("EvoBA", budget={"epsilon": 4}), few)
    assert free.semantics.perturbation.epsilon is None
    assert bounded.metrics["count_succ"] < free.metrics["count_succ"]
    assert bounded.metrics["l0_dists_succ_max"] <= 4


def test_two_runs_give_equal_bytes(few, tmp_path):
    written = [
        write_artifacts(run(own("SimBA"), few), tmp_path / str(i) / "q", few, started=float(i)).directory
        for i in range(2)
    ]
    for file in ("robustness_data.pt", "metadata.json"):
        assert (written[0] / file).read_bytes() == (written[1] / file).read_bytes()


def test_checkpoints_go_with_the_assessment(few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(own("EvoBA"), few)
    assert not Checkpoint("q", "", []).directory.parent.exists()
