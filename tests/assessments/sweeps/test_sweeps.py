"""Sweeps on three Gaussian blobs with a linear classifier, where the critical epsilon has a closed form."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from windtunnel.assessments.catalogue import algorithms
from windtunnel.assessments.sweeps.assess import assess
from windtunnel.assessments.sweeps.curve import (
    Sweep,
    area_under_curve,
    critical_epsilon,
    epsilon_grid,
    median_index,
    rating_of,
    sweep_metrics,
)
from windtunnel.assessments.sweeps.preflight import preflight
from windtunnel.assessments.sweeps.report import text_histogram
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UnsoundError, UserError
from windtunnel.core.subject import subject_of
from windtunnel.core.transformations import transformation_of
from windtunnel.core.transformed import transform
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import EpsilonRange, SweepEntry
from windtunnel.records.artifacts import read_artifacts, write_artifacts

BUDGET = Budget(norm=Norm.LINF, epsilon=0.1)
CENTRES = torch.tensor([[-0.9, -0.9], [0.9, 0.9], [0.9, -0.9]])


@pytest.fixture
def blobs():
    """Three uniform blobs around neural-api's centres, and the linear classifier of the nearest centre."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.arange(3).repeat_interleave(40)
    inputs = CENTRES[targets] + 1.4 * (torch.rand(120, 2, generator=generator) - 0.5) * 2
    linear = nn.Linear(2, 3)
    with torch.no_grad():
        linear.weight.copy_(CENTRES)
        linear.bias.copy_(-CENTRES.square().sum(1) / 2)
    classifier = Classifier(linear.eval(), 3, (2,), frozenset(Capability), "digest", "blobs")
    dataset = Dataset(inputs, targets, tuple(map(str, range(120))), ("a", "b", "c"), value_range=(-3.0, 3.0))
    return subject_of(classifier, dataset)


def analytic_critical_epsilon(subject):
    """Per sample, the smallest epsilon at which x + epsilon * s has another argmax, s the sign of the gradient there."""
    module, x, y = subject.classifier.module, subject.dataset.inputs.clone().requires_grad_(), subject.dataset.targets
    nn.functional.cross_entropy(module(x), y, reduction="sum").backward()
    s, w = x.grad.sign(), module.weight.detach()
    logits, slope = module(x).detach(), s @ w.T
    top = logits.argmax(1, keepdim=True)
    lead, gain = logits.gather(1, top) - logits, slope - slope.gather(1, top)
    crossing = torch.where(gain > 0, lead / gain, torch.inf).scatter(1, top, torch.inf)
    return crossing.amin(1)


def test_the_refined_critical_epsilon_equals_the_analytic_one(blobs):
    entry = SweepEntry(epsilons=EpsilonRange(start=0, stop=2, steps=9), refine=20, clip=False)
    found = assess("fgsm", entry, BUDGET, blobs).data["critical_epsilon"]
    truth = analytic_critical_epsilon(blobs)
    inside = truth < 2
    assert inside.sum() > 60
    assert torch.allclose(found[inside], truth[inside], atol=1e-5)
    assert found[~inside].isinf().all()


def test_epsilon_zero_is_the_plain_evaluation_exactly(blobs):
    result = assess("fgsm", SweepEntry(epsilons=[0, 0.3]), BUDGET, blobs)
    assert torch.equal(result.data["sweep_predictions"][0], blobs.clean_predictions)
    assert result.metrics["accuracy_curve"][0] == float(blobs.clean_correct.double().mean())


def test_every_metric_is_recomputed_from_the_tensors_on_disk(blobs, tmp_path):
    result = assess("fgsm", SweepEntry(epsilons=[0, 0.1, 0.4, 0.8]), BUDGET, blobs)
    read = read_artifacts(write_artifacts(result, tmp_path / "fgsm", blobs, started=0).directory)
    sweep = Sweep(
        *(read.tensor(k) for k in ("epsilons", "sweep_predictions", "targets", "clean_confidence", "critical_epsilon")),
        3,
    )
    assert sweep_metrics(sweep, 0.1, 0.4) == read.metrics


def test_the_model_is_byte_equal_before_and_after(blobs):
    before = module_digest(blobs.classifier.module)
    assess("fgsm", SweepEntry(), BUDGET, blobs)
    assert module_digest(blobs.classifier.module) == before


def test_a_model_that_counts_its_calls_in_a_buffer_is_caught(blobs):
    class Counts(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    changed = replace(blobs, classifier=replace(blobs.classifier, module=Counts(blobs.classifier.module)))
    with pytest.raises(UnsoundError, match="changed the model"):
        assess("fgsm", SweepEntry(), BUDGET, changed)


def test_stored_examples_break_what_counts_as_broken_and_keep_the_range(blobs):
    result = assess("fgsm", SweepEntry(epsilons=[0, 0.2, 0.5, 1.0]), BUDGET, blobs)
    wrong = blobs.classifier.predict(result.data["perturbed_inputs"]) != blobs.dataset.targets
    assert torch.equal(result.data["verdicts"] == 1, wrong)
    assert result.data["perturbed_inputs"].abs().max() <= 3
    assert (result.data["perturbation_distance"] <= 1.0 + 1e-5).all()


def test_data_outside_the_declared_range_is_not_broken_by_the_clipping(blobs):
    far = replace(blobs.dataset, value_range=(-0.5, 0.5))
    result = assess("fgsm", SweepEntry(epsilons=[0, 0.05, 0.1], refine=2), BUDGET, replace(blobs, dataset=far))
    assert (result.data["perturbation_distance"] <= 0.1 + 1e-6).all()
    outside = blobs.dataset.inputs.abs().amax(1) > 0.65
    unmoved = result.data["perturbed_inputs"][outside] == blobs.dataset.inputs[outside]
    assert outside.any()
    assert unmoved.all()
    assert result.data["critical_epsilon"][outside].isinf().all()


def test_logits_that_are_not_finite_break_the_sample(blobs):
    class NanInTheMiddle(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return torch.where(x.abs().amax(1, keepdim=True) < 0.5, torch.nan, self.inner(x))

    broken = replace(blobs, classifier=replace(blobs.classifier, module=NanInTheMiddle(blobs.classifier.module)))
    result = assess("fgsm", SweepEntry(epsilons=[0, 1.0]), BUDGET, broken)
    is_nan = result.data["sweep_predictions"][1] == -1
    assert is_nan.any()
    assert (result.data["verdicts"][is_nan] == 1).all()
    assert (result.data["critical_epsilon"][is_nan] == 1).all()


@pytest.mark.parametrize(("epsilons", "says"), [([], "is empty"), ([0.1, 0.1], "0.1 is repeated"), ([0.0], "only 0")])
def test_a_menu_that_means_nothing_is_refused(blobs, epsilons, says):
    with pytest.raises(UserError, match=says):
        preflight("sweeps.fgsm", SweepEntry(epsilons=epsilons), BUDGET, blobs.classifier, blobs.dataset)


def test_a_parameter_that_fgsm_does_not_have_is_refused(blobs):
    with pytest.raises(UserError, match=r"sweeps.fgsm.params: 'steps' is not a parameter of FGSM; there is none"):
        preflight("sweeps.fgsm", SweepEntry(params={"steps": 3}), BUDGET, blobs.classifier, blobs.dataset)


def test_a_negative_epsilon_is_refused_by_the_schema():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        SweepEntry(epsilons=[-0.1, 0.1])


def test_a_menu_without_zero_gets_it_and_says_so(blobs):
    assert epsilon_grid([0.2, 0.1], "x") == ([0.0, 0.1, 0.2], True)
    result = assess("fgsm", SweepEntry(epsilons=["8/255"]), BUDGET, blobs)
    assert result.data["epsilons"].tolist() == pytest.approx([0, 8 / 255])
    assert "zero_added" in [c.code for c in result.caveats]


def test_one_class_is_refused(blobs):
    single = replace(blobs.dataset, class_names=("a",), targets=torch.zeros(120, dtype=torch.int64))
    with pytest.raises(UserError, match="one class"):
        preflight("sweeps.fgsm", SweepEntry(), BUDGET, blobs.classifier, single)


def test_geometric_ranges_multiply():
    grid, _ = epsilon_grid(EpsilonRange(start=0.01, stop=0.16, steps=5, spacing="geometric"), "x")
    assert grid == pytest.approx([0, 0.01, 0.02, 0.04, 0.08, 0.16])


def test_the_median_is_the_upper_one_and_the_thresholds_are_the_originals():
    assert median_index([0, 0.01, 0.02, 0.05, 0.1, 0.2]) == 3
    assert [rating_of(d, 0.1, 0.4) for d in (0, 0.099, 0.1, 0.39, 0.4)] == [
        "robust", "robust", "moderately fragile", "moderately fragile", "fragile",
    ]  # fmt: skip


def test_the_groups_of_earliest_and_longest_are_those_of_the_grid_however_fine_the_bisection():
    """Ten samples flip at 0.1, eight at 0.2, two never; bisection gives every one of the ten an epsilon of its own."""
    predictions = torch.zeros(3, 20, dtype=torch.int64)
    predictions[1:, :10], predictions[2, 10:18] = 1, 1
    epsilons, confidence = torch.tensor([0.0, 0.1, 0.2]), torch.linspace(0.5, 1, 20)
    refined = torch.cat([torch.linspace(0.05, 0.1, 10), torch.linspace(0.15, 0.2, 8), torch.tensor([torch.inf] * 2)])
    metrics = sweep_metrics(Sweep(epsilons, predictions, torch.zeros(20).long(), confidence, refined, 2), 0.1, 0.4)
    assert (metrics["n_earliest"], metrics["n_longest"]) == (10, 2)
    assert metrics["confidence_earliest"] == pytest.approx(float(confidence[:10].mean()))
    assert metrics["confidence_longest"] == pytest.approx(float(confidence[18:].mean()))
    (zero, one) = metrics["per_class_at_median_epsilon"]
    assert (zero["n"], zero["accuracy"], one) == (20, 0.5, {"n": 0})
    assert zero["accuracy_ci_low"] < 0.5 < zero["accuracy_ci_high"]
    assert metrics["per_class_accuracy_at_median_epsilon"] == [0.5, None]


@given(st.integers(0, 10_000))
def test_the_cumulative_curve_never_rises_and_never_lies_above_the_raw_one(seed):
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randint(0, 3, (5, 20), generator=generator)
    targets = torch.randint(0, 3, (20,), generator=generator)
    epsilons = torch.arange(5.0)
    sweep = Sweep(epsilons, predictions, targets, torch.rand(20), critical_epsilon(epsilons, predictions), 3)
    cumulative = sweep.cumulative_correct.double().mean(1)
    assert (cumulative.diff() <= 0).all()
    assert (cumulative <= sweep.raw_accuracy + 1e-12).all()
    assert sum(sweep_metrics(sweep, 0.1, 0.4)["critical_epsilon_histogram"]) == int(
        sweep.critical_epsilon.isfinite().sum()
    )


def test_the_area_of_a_straight_fall_is_one_half():
    assert float(area_under_curve(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.5, 0.0]))) == pytest.approx(0.5)


def test_the_area_of_many_samples_is_the_mean_of_theirs_and_the_trapezoid_of_their_mean():
    epsilons = torch.tensor([0.0, 0.1, 0.4, 0.5])
    correct = torch.rand(4, 30, generator=torch.Generator().manual_seed(0)) < 0.6
    whole = torch.trapezoid(correct.double().mean(1), epsilons.double()) / 0.5
    assert float(area_under_curve(epsilons, correct).mean()) == pytest.approx(float(whole))


def test_the_text_histogram_has_a_line_per_bin_and_one_for_survivors():
    lines = text_histogram([0, 2, 4], 0.3, 1).splitlines()
    assert len(lines) == 4
    assert lines[2].count("█") == 40
    assert "never flips" in lines[3]


def test_the_sizes_of_the_groups_stand_in_the_figure_and_the_terminal(blobs, tmp_path):
    from rich.console import Console

    from windtunnel.assessments.sweeps.figures import ConfidenceVisualiser
    from windtunnel.assessments.sweeps.report import print_report

    result = assess("fgsm", SweepEntry(epsilons=[0, 0.1, 0.4, 0.8]), BUDGET, blobs)
    artifacts = write_artifacts(result, tmp_path, blobs, started=0.0)
    sizes = [f"{artifacts.metrics[f'n_{group}']} {words}"
             for group, words in (("earliest", "flip earliest"), ("longest", "last longest"))]  # fmt: skip
    console = Console(record=True, width=120)
    print_report(artifacts.metadata, console)
    printed, drawn = console.export_text(), ConfidenceVisualiser().draw(artifacts)
    shown = str([getattr(scene, "marks", scene) for scene in (drawn if isinstance(drawn, list | tuple) else [drawn])])
    for size in sizes:
        assert size in printed
        assert f"{size}: mean" in shown


def test_every_algorithm_of_the_catalogue_can_be_swept(digits_subject):
    model, data = digits_subject.classifier, digits_subject.dataset
    for algorithm in algorithms("sweeps"):
        wrapped = {"attacks": ["PGD", "FGSM"]} if algorithm.name == "MultiAttack" else {}
        budget = {"rotation": 30} if algorithm.library == "transformations" else {}
        entry = SweepEntry(library=algorithm.library, algorithm=algorithm.name, params=wrapped, budget=budget)
        preflight("sweeps.every", entry, BUDGET, model, data)


def test_a_sweep_over_an_angle_stores_the_parameters_of_its_images(digits_subject):
    few = digits_subject.subset(torch.arange(12))
    budget, params = {"rotation": 60}, {"points": 31, "refine": 1}
    entry = SweepEntry(
        library="transformations", algorithm="grid", budget=budget, params=params, epsilons=[0, 0.25, 1], refine=2
    )
    data = assess("angle", entry, BUDGET, few).data
    angles = data["transformation_parameters"]["rotation"]
    region = transformation_of("rotation=60")
    assert torch.equal(transform(region, few.dataset.inputs, angles[:, None].double()), data["perturbed_inputs"])
    assert torch.allclose(angles.abs() / 60, data["perturbation_distance"])
    early = data["sweep_predictions"][1] != few.dataset.targets
    assert (angles[early & few.clean_correct].abs() <= 15 + 1e-4).all()
    assert (data["verdicts"] == Verdict.ATTACK_SUCCEEDED).any()


def test_an_attack_that_needs_a_target_class_is_refused_as_a_sweep(blobs):
    entry = SweepEntry(library="foolbox", algorithm="GenAttack")
    with pytest.raises(UserError, match=r"sweeps\.x\.algorithm: .*GenAttack"):
        preflight("sweeps.x", entry, BUDGET, blobs.classifier, blobs.dataset)
