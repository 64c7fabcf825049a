"""Soundness first: what is verified must hold, against analytic radii, random points and a complete solver."""

from dataclasses import replace

import pytest
import torch
from balls import DUAL, analytic_radius, budget, entry, first, subject_with
from torch import nn
from zoo import ZOO

from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.verification.assess import assess, verification_metrics
from windtunnel.assessments.verification.bound_propagation.lirpa import Bounds, bound_batch, margin_matrix
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.falsifier import falsify
from windtunnel.assessments.verification.family import FAMILY
from windtunnel.assessments.verification.preflight import preflight
from windtunnel.assessments.verification.rates import bounds_metrics
from windtunnel.core.contracts import Norm, PerturbationBudget, Verdict
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.params.entry import BudgetOverride
from windtunnel.params.results import Clean
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.artifacts import write_artifacts
from windtunnel.records.files import file_digest

LINF = budget(0.05)
CROWN = entry("crown")


@pytest.mark.parametrize("norm", list(DUAL))
def test_the_margin_bound_of_a_linear_model_vanishes_at_its_analytic_radius(free_linear, norm):
    radius = analytic_radius(free_linear, norm)
    for i in range(0, 40, 8):
        if radius[i] < 0.4:
            bounds = bound_batch(
                free_linear.classifier, free_linear.dataset.inputs[i : i + 1], free_linear.dataset.targets[i : i + 1],
                norm, float(radius[i]), "crown", logits=False,
            )  # fmt: skip
            assert abs(float(bounds.worst_margin)) < 1e-5


@pytest.mark.parametrize(("norm", "name"), [(Norm.LINF, "crown"), (Norm.L2, "crown-l2"), (Norm.L1, "crown-l1")])
def test_crown_certifies_a_linear_sample_if_and_only_if_its_radius_allows(free_linear, norm, name):
    radius = analytic_radius(free_linear, norm)
    epsilon = float(radius.median())
    verdicts = assess("v", entry(name), budget(epsilon, norm), free_linear).data["verdicts"]
    clear = (radius - epsilon).abs() > 1e-5
    assert torch.equal((verdicts == Verdict.VERIFIED)[clear], (radius > epsilon)[clear])


def test_no_attack_breaks_a_certified_sample(digits_subject):
    subject = first(digits_subject, 60)
    verified = assess("v", CROWN, LINF, subject).data["verdicts"] == Verdict.VERIFIED
    found, _ = falsify(subject.classifier, subject.dataset.inputs, subject.dataset.targets, 0.05, seed=1)
    assert verified.sum() > 10
    assert not (verified & found).any()


NETWORKS = {
    "convolution, batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 5)
    ),
    "max pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    ),
    "average pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(3, stride=2), nn.Flatten(), nn.Linear(16, 5)
    ),
    "overlapping max pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3, stride=1), nn.Flatten(), nn.Linear(64, 5)
    ),
    "tanh and sigmoid": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 5)
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", ["ibp", "forward", "crown-ibp", "forward+backward", "crown", "alpha-crown"])
def test_random_points_and_corners_of_a_ball_lie_within_the_bounds_of_every_method(network, method):
    torch.manual_seed(0)
    subject = subject_with(NETWORKS[network](), torch.rand(3, 1, 8, 8), 5)
    result = assess("v", entry(method), budget(0.03), subject)
    bounds, generator = result.data["output_bounds"], torch.Generator().manual_seed(1)
    for i in range(3):
        noise = (2 * torch.rand(1000, 1, 8, 8, generator=generator) - 1) * 0.03
        noise[500:] = noise[500:].sign() * 0.03
        logits = subject.classifier.logits((subject.dataset.inputs[i] + noise).clamp(0, 1))
        assert (logits >= bounds["lower"][i] - 1e-4).all()
        assert (logits <= bounds["upper"][i] + 1e-4).all()
        other_class = logits.scatter(1, subject.dataset.targets[i].expand(1000, 1), -torch.inf).amax(1)
        assert ((logits[:, subject.dataset.targets[i]] - other_class) >= result.data["lower_margins"][i] - 1e-4).all()


@pytest.mark.parametrize(("norm", "name"), [(Norm.LINF, "crown"), (Norm.L2, "crown-l2"), (Norm.L1, "crown-l1")])
def test_1000_random_points_of_a_certified_ball_keep_the_label(digits_subject, norm, name):
    subject = first(digits_subject, 25)
    epsilon = {Norm.LINF: 0.04, Norm.L2: 0.2, Norm.L1: 0.3}[norm]
    result = assess("v", entry(name), budget(epsilon, norm), subject)
    bounds, generator = result.data["output_bounds"], torch.Generator().manual_seed(0)
    verified = (result.data["verdicts"] == Verdict.VERIFIED).nonzero().flatten().tolist()
    assert len(verified) > 5
    for i in verified:
        noise = torch.randn(1000, 64, generator=generator)
        if norm is Norm.LINF:
            noise = noise.sign()
        if norm is Norm.L1:  # the corners of its ball: one pixel
            noise = noise * (noise.abs() == noise.abs().amax(1, keepdim=True))
        length = torch.linalg.vector_norm(noise, ord={Norm.LINF: torch.inf, Norm.L2: 2, Norm.L1: 1}[norm], dim=1)
        points = subject.dataset.inputs[i] + (noise / length[:, None] * epsilon).view(-1, 1, 8, 8)
        logits = subject.classifier.logits(points.clamp(0, 1) if norm is Norm.LINF else points)
        assert (logits.argmax(1) == subject.dataset.targets[i]).all()
        assert (logits >= bounds["lower"][i] - 1e-4).all()
        assert (logits <= bounds["upper"][i] + 1e-4).all()


def test_the_methods_are_ordered_and_verdicts_are_monotone_in_epsilon(digits_subject):
    subject = first(digits_subject, 40)

    def verified(method, epsilon):
        return assess("v", entry(method), budget(epsilon), subject).data["verdicts"] == Verdict.VERIFIED

    ibp, crown_ibp, crown = (verified(m, 0.01) for m in ("ibp", "crown-ibp", "crown"))
    assert (ibp <= crown_ibp).all()
    assert (crown_ibp <= crown).all()
    assert (verified("crown", 0.05) <= crown).all()


def test_margins_are_tighter_than_the_difference_of_two_bounds(digits_subject):
    subject = first(digits_subject, 20)
    targets = subject.dataset.targets
    bounds = bound_batch(subject.classifier, subject.dataset.inputs, targets, Norm.LINF, 0.05, "crown")
    other_classes = bounds.upper.scatter(1, targets[:, None], -torch.inf).amax(1)
    loose = bounds.lower.gather(1, targets[:, None]).squeeze(1) - other_classes
    assert (bounds.worst_margin >= loose - 1e-4).all()
    assert (bounds.worst_margin > loose + 0.1).any()


@pytest.mark.parametrize(("name", "epsilon"), [("lenet", 0.05), ("grouped", 0.15), ("dilated", 0.15)])
def test_what_crown_finds_of_a_sample_does_not_depend_on_its_batch(name, epsilon):
    torch.manual_seed(0)
    make, shape = ZOO[name]
    subject = canonical_subject(subject_with(make(), torch.rand(6, *shape), 5)).subject
    data = subject.dataset

    def worst(at: slice) -> torch.Tensor:
        return bound_batch(
            subject.classifier, data.inputs[at], data.targets[at], Norm.LINF, epsilon, "crown", logits=False
        ).worst_margin

    alone = torch.cat([worst(slice(i, i + 1)) for i in range(6)])
    assert torch.allclose(worst(slice(None)), alone, atol=1e-4)


def test_a_misclassified_sample_is_falsified_by_itself_and_never_certified(digits_subject):
    wrong = ~digits_subject.clean_correct
    result = assess("v", CROWN, LINF, digits_subject)
    assert wrong.any()
    assert (result.data["verdicts"][wrong] == Verdict.FALSIFIED).all()
    assert (result.data["perturbation_distance"][wrong] == 0).all()


def test_metrics_are_recomputed_from_the_tensors_alone(digits_subject):
    result = assess("v", CROWN, LINF, first(digits_subject, 30))
    assert verification_metrics(result.data, ["clean", "crown"]) == result.metrics


def test_what_the_library_is_called_with_is_told_for_all_samples(digits_subject):
    some = digits_subject.subset(torch.arange(7))
    call = assess("v", entry("crown"), budget(0.01), some).call_kwargs
    assert {key: tuple(call[key].shape) for key in ("x", "x_L", "x_U", "C")} == {
        "x": (7, 1, 8, 8), "x_L": (7, 1, 8, 8), "x_U": (7, 1, 8, 8), "C": (7, 29, 10),
    }  # fmt: skip
    assert call["x_L"].untyped_storage().nbytes() == 64 * 4  # as recorded: not made of every sample


class RecordingEntry(VerificationEntry):
    """An entry that notes which of its keys were read."""

    def __getattribute__(self, name):
        if name in VerificationEntry.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()
OPTIONS = {"timeout", "time_budget", "steps", "other_classes", "output_bounds", "radius", "batch_size"}
BY_ASSESS = {"steps", "time_budget", "radius", "batch_size"}  # read by the pipeline of every entry, not by a step


@pytest.mark.parametrize(
    ("name", "keys", "recorded"),
    [
        *((method, {}, {"batch_size"}) for method in ("ibp", "forward", "crown-ibp", "forward+backward", "crown")),
        ("alpha-crown", {"time_budget": 60}, {"batch_size", "time_budget"}),
        ("branch-and-bound", {"timeout": 5}, {"batch_size", "timeout"}),
        ("linf-box", {"timeout": 5}, {"timeout", "other_classes", "output_bounds"}),
        ("cascade", {"steps": ["attack", "ibp"]}, {"batch_size", "steps"}),
    ],
)
def test_metadata_records_the_options_that_the_steps_read_and_no_others(free_linear, name, keys, recorded):
    plain = entry(name, **keys)
    recording = RecordingEntry.model_validate(plain.model_dump())
    READ.clear()
    result = assess("v", recording, budget(0.02), first(free_linear, 2))
    assert {key for key in result.kwargs if key in OPTIONS} == recorded
    assert recorded >= READ & (OPTIONS - BY_ASSESS)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("linf-box", {}),
        ("linf-box", {"output_bounds": True}),
        ("branch-and-bound", {}),
        ("cascade", {"steps": ["attack", "marabou"]}),
        ("cascade", {"steps": ["attack", "ibp"]}),
        ("crown", {}),
    ],
)
def test_output_bounds_are_drawn_by_default_where_there_are_any(free_linear, name, keys):
    drawn = entry(name, **keys).visualisers_by_default(FAMILY.visualisers)
    bounds = assess("v", entry(name, **keys), budget(0.02), first(free_linear, 2)).data["output_bounds"]
    has_bounds = bool(bounds["lower"].isfinite().any())
    assert any(figure.startswith("OutputBounds") for figure in drawn) is has_bounds
    assert "VerdictSummaryVisualiser" in drawn


def test_a_key_that_a_verifier_does_not_read_is_named(free_linear):
    unread = entry("crown", steps=["ibp"], timeout=3)
    notes = preflight("verification.v", unread, budget(0.02), free_linear.classifier, free_linear.dataset)
    assert [note.split(":")[0] for note in notes] == ["verification.v.steps", "verification.v.timeout"]


def test_the_margin_matrix_subtracts_every_rival_from_the_target():
    logits = torch.tensor([[1.0, 5.0, 2.0]])
    margins = margin_matrix(torch.tensor([1]), 3) @ logits[..., None]
    assert margins.flatten().tolist() == [4.0, 3.0]


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        (entry("crown"), {"epsilon": 1.5}, "covers every image"),
        (entry("crown-l2"), {}, "works under L2"),
        (entry("crown", params={"x": 1}), {}, "not a parameter of crown; there is none"),
        (entry("crwon"), {}, "Did you mean 'crown'"),
        (entry("crown-l2"), {"norm": "L2", "epsilon": 8}, "covers every image"),
        (entry("crown-l1"), {"norm": "L1", "epsilon": 64}, "covers every image"),
        (entry("crown", radius={"max": 1.5, "tolerance": 0.1}), {}, "beyond every image"),
        (entry("linf-box", radius={"max": 0.5, "tolerance": 0.1}), {}, "no step here gives bounds"),
        (entry("crown", radius={"max": 0.5, "tolerance": 0.1, "method": "corwn"}), {}, "Did you mean 'crown'"),
        (entry("cascade", radius={"max": 0.5, "tolerance": 0.1, "method": "attack"}), {}, "radius.method: .*'attack'"),
        (entry("crown", examples_from=["pgd"]), {}, "only the cascade"),
        (entry("smoothing"), {}, "works under L2"),
        (entry("smoothing", params={"sgima": 1}), {"norm": "L2", "epsilon": 0.5}, "Did you mean 'sigma'"),
        (entry("smoothing", params={"alpha": 2}), {"norm": "L2", "epsilon": 0.5}, "alpha: .*less than 1"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(digits_subject, given, options, says):
    chosen = replace(digits_subject)
    given = given.model_copy(update={"budget": BudgetOverride(**options)})
    with pytest.raises(UserError, match=says) as caught:
        preflight("verification.v", given, LINF, chosen.classifier, chosen.dataset)
    assert "\n" not in str(caught.value)


def test_a_recurrent_model_is_refused(digits_subject):
    classifier = replace(digits_subject.classifier, module=nn.Sequential(nn.LSTM(4, 4)))
    with pytest.raises(IncompatibleError, match="recurrent"):
        preflight("verification.v", CROWN, LINF, classifier, digits_subject.dataset)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"budget": {"epsilon": 0}}, "greater than 0"),
        ({"radius": {"max": 0.1, "tolerance": 0.2}}, "must be smaller than max"),
        ({"radius": {"max": 0.1, "tolerance": 1e-9}}, "at least a millionth of max"),
    ],
)
def test_epsilon_zero_and_a_tolerance_beyond_its_range_are_refused_when_params_are_read(keys, says):
    with pytest.raises(ValueError, match=says):
        entry("crown", **keys)


def test_a_planted_unsound_bound_is_caught_by_the_summary(digits_subject, tmp_path, monkeypatch):
    subject, region = first(digits_subject, 30), PerturbationBudget(Norm.LINF, 0.2)

    def written(result):
        return write_artifacts(result, tmp_path / result.name, subject, started=0.0)

    clean = written(assess_clean(Clean(), subject))
    attacked = written(assess("attacked", entry("cascade", steps=["attack"]), budget(0.2), subject))
    sound = summarise(subject, region, clean, [attacked, written(assess("v", CROWN, budget(0.2), subject))])
    assert sound.metrics["hard_failures"] == 0
    monkeypatch.setattr(Bounds, "verified", property(lambda bounds: torch.ones(len(bounds.margins), dtype=torch.bool)))
    unsound = summarise(subject, region, clean, [attacked, written(assess("w", CROWN, budget(0.2), subject))])
    assert unsound.metrics["hard_failures"] == (attacked.tensor("decided_by") == 1).sum() > 10


def test_certificates_of_a_smoothed_model_are_no_part_of_the_sandwich(digits_subject, tmp_path):
    subject, region = first(digits_subject, 10), PerturbationBudget(Norm.L2, 0.1)
    given = entry("smoothing", params={"n": 200, "n0": 20, "sigma": 0.2})
    results = [assess_clean(Clean(), subject), assess("s", given, budget(0.1, Norm.L2), subject)]
    clean, smoothed = (write_artifacts(r, tmp_path / r.name, subject, started=0.0) for r in results)
    assert (smoothed.tensor("verdicts") == Verdict.VERIFIED).sum() > 5
    summary = summarise(subject, region, clean, [smoothed])
    assert "certified_accuracy" not in summary.metrics
    assert "nothing_verified" in [caveat.code for caveat in summary.caveats]


def test_examples_of_attacks_falsify_in_the_cascade_only_within_its_budget(digits_subject, tmp_path):
    subject = first(digits_subject, 40)
    attacked = assess("pgd", entry("cascade", steps=["attack"]), budget(0.1), subject)
    written = write_artifacts(attacked, tmp_path / "pgd", subject, started=0.0)
    broken = (attacked.data["perturbation_distance"] > 0).sum()
    assert broken > 3
    given = entry("cascade", steps=["crown"], examples_from=["pgd"])
    found = assess("c", given, budget(0.1), subject, {"pgd": written})
    assert found.metrics["decided_by"]["examples"] == broken
    assert found.kwargs["examples_from"] == {"pgd": file_digest(written.directory / "robustness_data.pt")}
    smaller = assess("c", given, budget(0.01), subject, {"pgd": written})
    inside = (attacked.data["perturbation_distance"] > 0) & (attacked.data["perturbation_distance"] <= 0.01)
    assert smaller.metrics["decided_by"].get("examples", 0) == inside.sum()


def test_the_bounds_of_the_logits_are_counted_and_averaged_over_the_samples_that_have_them() -> None:
    lower, upper = (
        torch.tensor([[1.0, 2.0], [3.0, 6.0], [0.0, 0.0]]),
        torch.tensor([[2.0, 4.0], [4.0, 8.0], [0.0, torch.nan]]),
    )
    assert bounds_metrics(lower, upper) == {
        "n_bounded": 2,
        "mean_lower_bound": [2.0, 4.0],
        "mean_upper_bound": [3.0, 6.0],
    }
    assert bounds_metrics(lower * torch.nan, upper) == {"n_bounded": 0}
