"""Every check stays quiet on a sound run, and flags the fault it is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.gallery import masks
from tests.evaluation.sanity.tamper import (
    KIND_SAMPLING,
    batchwise,
    changed,
    failing,
    fake,
    interrupted,
    noisy,
    not_differentiable,
    optimising,
    piece_of,
    probabilities,
    quantised,
    rough,
    saturated,
    shaken,
    winning,
    with_model,
    with_params,
)
from windtunnel.assessments.corruptions.metrics import SuiteData, mce_metrics
from windtunnel.assessments.corruptions.reference import Reference, alexnet
from windtunnel.boundary.models.load import export_onnx
from windtunnel.core.contracts import SMOOTHED_MODEL, Verdict
from windtunnel.evaluation import sanity
from windtunnel.evaluation.sanity.check import Severity, Status
from windtunnel.evaluation.sanity.evidence import Evidence, collect
from windtunnel.evaluation.sanity.run import registry, run_check
from windtunnel.records.files import DATA_FILE, file_digest, read_json
from windtunnel.records.findings import FindingRecord

CHECKS = registry()
# Not flagged by any fault of one run: pairs are made by `windtunnel compare`; G5 and G6 are asked at the moment.
NEVER_HERE = {"F3", "G5", "G6"}


def look(check: str, evidence: Evidence) -> FindingRecord:
    return run_check(CHECKS[check], evidence, evidence.params.sanity)


def module(evidence: Evidence) -> torch.nn.Module:
    return evidence.subject.classifier.module


def region(**keys: object) -> Callable[[dict], None]:
    return lambda m: m["semantics"]["perturbation"].update(keys)


def metric(**keys: object) -> Callable[[dict], None]:
    return lambda m: m["metrics"].update(keys)


def whole(key: str, value: float) -> Callable[[dict], None]:
    return lambda d: d[key].fill_(value)


def one_class_left_out(e: Evidence) -> Evidence:
    """Sixty samples of nine classes: the threes are called fours."""
    dataset = e.subject.dataset
    targets = torch.where(dataset.targets == 3, 4, dataset.targets)
    return replace(e, subject=replace(e.subject, dataset=replace(dataset, targets=targets)), notes={})


def training_mode(e: Evidence) -> Evidence:
    import copy

    return with_model(e, copy.deepcopy(module(e)).train(), ask=False)


def normalised_outside(e: Evidence) -> Evidence:
    dataset = replace(e.subject.dataset, inputs=(e.subject.dataset.inputs - 0.3) / 0.35)
    return replace(e, subject=replace(e.subject, dataset=dataset), notes={})


def unlabelled(e: Evidence) -> Evidence:
    return replace(e, subject=replace(e.subject, dataset=replace(e.subject.dataset, labelled=False)), notes={})


def another_graph(e: Evidence) -> Evidence:
    """The classifier says that its ONNX graph is a file, which is of another network."""
    torch.manual_seed(1)
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    path = Path(piece_of(e, "fgsm").artifacts.directory).parent / "other.onnx"
    export_onnx(replace(e.subject.classifier, module=other), path)
    return replace(e, subject=replace(e.subject, classifier=replace(e.subject.classifier, onnx_path=path)), notes={})


def other_samples(e: Evidence) -> Evidence:
    return replace(e, foreign={"pgd": "its clean inputs are not those of the clean assessment"})


def steps_outside(d: dict) -> None:
    d["perturbed_inputs"] = (d["clean_inputs"] + 0.5).clamp(0, 1)


def not_in_the_tensor(d: dict) -> None:
    d["perturbed_inputs"] = d["clean_inputs"].clone()


def does_nothing(e: Evidence) -> Evidence:
    return failing(changed(e, "pgd", not_in_the_tensor), "pgd")


def success_without_example(d: dict) -> None:
    d.update(perturbed_inputs=d["clean_inputs"].clone(), perturbed_predictions=d["targets"].clone())
    d["verdicts"].fill_(1)


def first_row(key: str, value: float) -> Callable[[dict], None]:
    def change(d: dict) -> None:
        d[key][0] = value

    return change


def between_levels(e: Evidence) -> Evidence:
    """8-bit images, and an example that leaves the boundary by a tenth of a grey level."""
    inputs = (e.subject.dataset.inputs * 255).round() / 255
    edge = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with torch.no_grad():
        edge[1].weight.zero_()
        edge[1].bias.zero_()
        edge[1].weight[0, 0], edge[1].bias[0] = -1e4, 1e4 * (0.5 / 255)  # class 0 below half a level, else class 1
    inputs[:, 0, 0, 0] = 0
    targets = torch.zeros(len(inputs), dtype=torch.int64)
    e = with_model(e, edge)
    dataset = replace(e.subject.dataset, inputs=inputs, targets=targets)
    e = replace(e, subject=replace(e.subject, dataset=dataset))

    def example(d: dict) -> None:
        d.update(clean_inputs=inputs.clone(), targets=targets.clone(), clean_predictions=targets.clone())
        d["perturbed_inputs"] = inputs.clone()
        d["perturbed_inputs"][:, 0, 0, 0] = 0.4 / 255
        d["attacked"].fill_(True)
        d["verdicts"].fill_(1)

    # At 0.4 of a level the steep model has another class once its bias is moved there.
    with torch.no_grad():
        edge[1].bias[0] = 1e4 * (0.3 / 255)
        edge[1].bias[1] = 0.0
    e = changed(e, "fgsm", example)
    return replace(e, assessments=(piece_of(e, "fgsm"),), notes={})


def with_inputs(e: Evidence, inputs: torch.Tensor) -> Evidence:
    return replace(e, subject=replace(e.subject, dataset=replace(e.subject.dataset, inputs=inputs)), notes={})


def mislabelled(e: Evidence) -> Evidence:
    targets = e.subject.dataset.targets.clone()
    targets[::5] = (targets[::5] + 3) % 10
    return replace(e, subject=replace(e.subject, dataset=replace(e.subject.dataset, targets=targets)))


def memorised(e: Evidence) -> Evidence:
    data = e.subject.dataset
    weak = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    return with_model(e, masks.Memory(weak, data.inputs, data.targets, 10, 1e-4))


def white_box_blind(e: Evidence) -> Evidence:
    return failing(e, "fgsm", "twin", "pgd")


def flat_sweep(d: dict) -> None:
    d["sweep_predictions"] = d["clean_predictions"].expand(6, -1).clone()


def rising_sweep(d: dict) -> None:
    d["sweep_predictions"][2] = (d["targets"] + 1) % 10
    d["sweep_predictions"][5] = d["targets"]


def without(name: str) -> Callable[[Evidence], Evidence]:
    return lambda e: replace(e, assessments=tuple(p for p in e.assessments if p.name != name))


def lost_search(d: dict) -> None:
    d["perturbed_predictions"][:10] = d["targets"][:10]


def late_queries(e: Evidence) -> Evidence:
    queries = torch.full((60,), 100)
    wins = torch.full((60,), 2)
    wins[:20] = 1
    data = {"queries": queries, "verdicts": wins, "clean_predictions": e.subject.dataset.targets}
    return fake(e, "evo", "queries", data, {})


def verified_all(name: str) -> Callable[[Evidence], Evidence]:
    return lambda e: changed(e, name, whole("verdicts", int(Verdict.VERIFIED)))


def contradiction(e: Evidence) -> Evidence:
    return changed(verified_all("crown_wide")(e), "marabou", whole("verdicts", int(Verdict.FALSIFIED)))


def not_a_counterexample(d: dict) -> None:
    d["perturbed_inputs"] = d["clean_inputs"].clone()
    d["verdicts"].fill_(int(Verdict.FALSIFIED))


def tight_bounds(d: dict) -> None:
    d["output_bounds"]["upper"] = d["output_bounds"]["lower"].clone()


def impossible_radius(e: Evidence, n: int = 100) -> Evidence:
    meta = {
        "call_kwargs": {"sigma": 0.25, "n": n, "alpha": 0.001},
        "semantics": {**piece_of(e, "crown").semantics.model_dump(mode="json"), "families": [SMOOTHED_MODEL]},
    }
    e = fake(e, "smooth", "verification", {"certified_radius": torch.full((60,), 5.0)}, meta)
    return e


def corruption_helps(d: dict) -> None:
    d["corruption_predictions"][0] = (d["targets"] + 1) % 10
    d["corruption_predictions"][1] = d["targets"]


def unseeded(e: Evidence) -> Evidence:
    return e  # the library itself is replaced, in the test


NO_WIDTH = ("adversarial_accuracy", "adversarial_accuracy_ci_low", "adversarial_accuracy_ci_high")


def divided_by(e: Evidence, name: str, *, alexnets: bool) -> Evidence:
    """The suite's mCE against a reference that calls itself `name`: AlexNet's published errors, or errors near them."""
    suite = piece_of(e, "noise")
    pairs = [(str(c), int(s)) for c, s in suite.options["corruptions"]]
    wrong = np.nan_to_num(alexnet(pairs).wrong, nan=0.5)  # speckle noise has no published error
    reference = Reference(name, wrong if alexnets else (wrong * 10).round() / 10)
    predictions, right = suite.tensor("corruption_predictions"), suite.tensor("targets")
    clean, quantised = suite.tensor("clean_predictions"), suite.tensor("quantised_predictions")
    found = SuiteData(pairs, predictions, clean, quantised, None, right, suite.tensor("minimal_severity"))

    def state(m: dict) -> None:
        m["metrics"].update(mce_metrics(found, reference, 0.95))
        m["kwargs"]["reference"] = {"name": name, "model_digest": "0"}

    return changed(e, "noise", metadata=state)


def latent_poor(e: Evidence) -> Evidence:
    return fake(e, "vae", "latent", {}, {"metrics": {"lra": 0.5}, "assessment_kind": KIND_SAMPLING})


def one_class_broken(e: Evidence) -> Evidence:
    """No example of any assessment is left, but for PGD's of one class; `changed` keeps the inputs, inside the budget."""

    def aimed_at_one_class(d: dict[str, torch.Tensor]) -> None:
        mine = (d["targets"] == 3) & (d["clean_predictions"] == 3)
        d["verdicts"].fill_(int(Verdict.ATTACK_FAILED)).masked_fill_(mine, int(Verdict.ATTACK_SUCCEEDED))
        d["perturbed_predictions"].masked_fill_(mine, 5)

    for p in e.assessments:
        if p.has("perturbed_predictions"):
            e = changed(e, p.name, lambda d: d["perturbed_predictions"].copy_(d["targets"]))
    return changed(e, "pgd", aimed_at_one_class)


def gate_on(name: str) -> Callable[[Evidence], Evidence]:
    from windtunnel.params.results import Gate

    gate = Gate(minimum={f"{name}/adversarial_accuracy": 0.1})
    return lambda e: replace(e, params=e.params.model_copy(update={"gate": gate}))


def nothing_found(e: Evidence) -> Evidence:
    """The attacks at the global budget left every sample, and no example."""
    names = ("fgsm", "twin", "pgd", "square", "aimed")
    for name in names:
        e = changed(e, name, lambda d: d.update(perturbed_inputs=d["clean_inputs"], perturbed_predictions=d["targets"]))
    return failing(e, *names)


FAULTS: dict[str, Callable[[Evidence], Evidence]] = {
    "A1": training_mode,
    "A2": lambda e: with_model(e, noisy(module(e))),
    "A3": lambda e: with_model(e, batchwise(module(e))),
    "A4": lambda e: with_model(e, probabilities(module(e))),
    "A5": normalised_outside,
    "A6": lambda e: changed(e, "pgd", metadata=region(epsilon=15.3)),
    "A7": lambda e: changed(e, "pgd", first_row("clean_predictions", 77)),
    "A8": lambda e: with_params(e, expected_clean_accuracy=0.5),
    "A9": other_samples,
    "A10": unlabelled,
    "A11": lambda e: changed(e, "pgd", metadata=lambda m: m["call_kwargs"].update(n_classes=7)),
    "A12": lambda e: with_model(e, optimising(module(e))),
    "A13": lambda e: with_model(e, interrupted(module(e))),
    "A14": lambda e: with_model(e, quantised(module(e))),
    "A15": another_graph,
    "A17": lambda e: changed(e, "pgd", metadata=lambda m: m["semantics"].update(sample_selection={})),
    "A18": lambda e: with_inputs(e, e.subject.dataset.inputs[torch.arange(60) % 10]),
    "A19": lambda e: with_inputs(e, e.subject.dataset.inputs[torch.arange(60) // 10]),
    "A20": lambda e: replace(e, train=e.subject.dataset),
    "A21": mislabelled,
    "A22": memorised,
    "A23": lambda e: with_model(e, masks.Cache(module(e), 0.1)),
    "A24": lambda e: with_model(e, masks.hash_noise(module(e))),
    "A25": one_class_left_out,
    "B1": lambda e: changed(e, "pgd", steps_outside),
    "B2": lambda e: changed(e, "pgd", first_row("perturbed_inputs", float("nan"))),
    "B3": lambda e: changed(e, "pgd", not_in_the_tensor),
    "B4": does_nothing,
    "B5": lambda e: changed(e, "pgd", metadata=metric(attack_success_rate=0.99)),
    "B6": lambda e: changed(e, "curve", first_row("sweep_predictions", 77)),
    "B7": lambda e: changed(e, "crown", first_row("verdicts", int(Verdict.ERROR))),
    "B8": lambda e: changed(e, "pgd", metadata=metric(adversarial_accuracy=0.999)),
    "B9": lambda e: changed(e, "pgd", success_without_example),
    "B10": between_levels,
    "C1": lambda e: with_model(e, saturated(module(e))),
    "C2": lambda e: with_model(e, not_differentiable(module(e))),
    "C3": white_box_blind,
    "C4": lambda e: winning(failing(e, "pgd"), "fgsm"),
    "C7": lambda e: winning(failing(e, "pgd_l2", "deepfool"), "hopskip"),
    "C8": lambda e: with_model(e, quantised(module(e))),
    "C9": lambda e: with_model(e, quantised(module(e))),
    "C10": lambda e: changed(e, "curve", rising_sweep),
    "C11": lambda e: changed(e, "curve", flat_sweep),
    "C12": lambda e: winning(failing(e, "fgsm", "twin"), "pgd"),
    "C13": lambda e: with_model(e, rough(module(e))),
    "C14": lambda e: with_model(e, saturated(module(e))),
    "C15": lambda e: with_model(e, shaken(module(e))),
    "C16": lambda e: with_model(e, noisy(quantised(module(e)), 0.01)),
    "C17": lambda e: with_model(e, noisy(module(e))),
    "C18": lambda e: failing(e, "pgd_l2"),
    "C19": lambda e: winning(failing(e, "fgsm", "twin", "pgd", "square"), "aimed"),
    "C20": lambda e: replace(e, assessments=tuple(p for p in e.assessments if p.semantics.threat_model == "white_box")),
    "C21": lambda e: with_params(nothing_found(e), benchmark="cifar10"),
    "C24": lambda e: with_model(e, masks.wrong_sign(module(e))),
    "D1": lambda e: failing(e, "pgd"),
    "D2": lambda e: failing(e, "pgd"),
    "D3": lambda e: failing(e, "pgd"),
    "D4": lambda e: changed(e, "pgd", metadata=region(step_size=0.0005)),
    "D5": nothing_found,
    "D6": lambda e: changed(e, "pgd", metadata=region(steps=2)),
    "D8": late_queries,
    "D9": lambda e: failing(e, "twin"),
    "D10": lambda e: changed(e, "deepfool", lost_search),
    "D11": lambda e: with_params(e, thresholds={}),
    "D12": lambda e: with_model(e, optimising(module(e))),
    "D13": lambda e: failing(e, "pgd_l2"),
    "D15": nothing_found,
    "E1": verified_all("crown"),
    "E2": verified_all("crown"),
    "E3": lambda e: changed(e, "marabou", not_a_counterexample),
    "E4": contradiction,
    "E5": lambda e: changed(e, "crown", tight_bounds),
    "E7": lambda e: changed(e, "crown", whole("verdicts", int(Verdict.UNKNOWN))),
    "E8": lambda e: changed(e, "marabou", metadata=metric(timeouts=2)),
    "E9": impossible_radius,
    "E10": lambda e: changed(e, "noise", corruption_helps),
    "E11": unseeded,
    "E12": lambda e: divided_by(e, "our own baseline", alexnets=True),
    "E13": latent_poor,
    "E14": lambda e: changed(e, "pgd", lambda d: d["perturbation_distance"].mul_(2)),
    "E15": verified_all("crown_wide"),
    "F1": lambda e: changed(e, "pgd", metadata=metric(some_rate=0.5)),
    "F2": lambda e: with_params(e, thresholds={}),
    "F4": lambda e: changed(e, "pgd", metadata=metric(**dict.fromkeys(NO_WIDTH, 0.0))),
    "F5": lambda e: changed(e, "curve", flat_sweep),
    "F6": lambda e: changed(e, "deepfool", metadata=metric(censored_median_distance=0.01)),
    "F7": gate_on("fgsm"),
    "F8": one_class_broken,
    "G1": lambda e: changed(e, "pgd", metadata=lambda m: m["provenance"].pop("seed")),
    "G2": lambda e: changed(e, "pgd", metadata=lambda m: m["provenance"]["packages"].update(torch="0.4")),
    "G3": lambda e: changed(e, "square", metadata=lambda m: m["call_kwargs"].pop("seed")),
    "G4": lambda e: changed(e, "fgsm", lambda d: d["verdicts"].copy_(3 - d["verdicts"])),
    "G7": lambda e: changed(e, "pgd", metadata=lambda m: m["provenance"].update(model_digest="0")),
    "G8": lambda e: changed(e, "pgd", metadata=lambda m: m["provenance"]["packages"].update(foolbox="3.0.0")),
}  # fmt: skip


@pytest.fixture
def unseeded_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For E11: a corruption that draws from a stream nobody seeded."""
    if request.node.callspec.params["check"] == "E11":
        import imagecorruptions

        generator = np.random.default_rng()
        monkeypatch.setattr(
            imagecorruptions, "corrupt", lambda image, *_, **__: generator.integers(0, 256, image.shape, dtype=np.uint8)
        )


@pytest.mark.slow
@pytest.mark.parametrize("check", [c for c in FAULTS])
def test_fault_is_flagged(check: str, evidence: Evidence, unseeded_library: None) -> None:
    finding = look(check, FAULTS[check](evidence))
    assert finding.status in (Status.WARN, Status.FAIL), finding
    assert finding.reason or finding.value is not None
    if finding.severity == "HARD":
        assert finding.status is Status.FAIL


@pytest.mark.slow
def test_no_decision_based_attack_beside_a_score_based_one_is_no_warning(evidence: Evidence) -> None:
    finding = look("C20", without("hopskip")(evidence))
    assert (finding.severity, finding.reason) == (Severity.INFO, "no decision-based attack")


@pytest.mark.slow
@pytest.mark.parametrize("check", list(CHECKS))
def test_sound_run_is_not_accused(check: str, evidence: Evidence) -> None:
    finding = look(check, evidence)
    assert finding.status in (Status.PASS, Status.NOT_APPLICABLE, Status.NOT_RUN), finding
    if finding.status is Status.NOT_RUN:
        assert check in NEVER_HERE, finding


def test_every_check_has_its_fault() -> None:
    assert set(CHECKS) - set(FAULTS) == NEVER_HERE | {"A16", "D7"}  # the two have tests of their own


@pytest.mark.slow
@pytest.mark.parametrize("code", ["weaker_method", "step_skipped"])
def test_a_verification_whose_method_gave_way_is_flagged(evidence: Evidence, code: str) -> None:
    caveat = {"code": code, "text": "another method answered", "samples": []}
    assert look("E8", evidence).status is Status.PASS
    finding = look("E8", changed(evidence, "crown", metadata=lambda m: m["caveats"].append(caveat)))
    assert finding.status is not Status.PASS
    assert list(finding.assessments) == ["crown"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("certified", "broken", "status"),
    [(0.0, torch.inf, Status.PASS), (0.5, torch.inf, Status.FAIL), (1e-6, 1e-7, Status.FAIL)],
)
def test_no_example_is_nearer_than_a_certified_radius(
    evidence: Evidence, certified: float, broken: float, status: Status
) -> None:
    radii = {"certified_radius": torch.full((60,), certified), "broken_radius": torch.full((60,), broken)}
    finding = look("E1", changed(evidence, "crown", lambda d: d.update(radii)))
    assert finding.status is status
    assert status is Status.PASS or "crown" in finding.assessments


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 100])
def test_a_radius_that_so_few_draws_cannot_certify_is_hard(evidence: Evidence, n: int) -> None:
    """Of 5 draws at alpha 0.001 the largest radius is negative: they certify nothing."""
    finding = look("E9", impossible_radius(evidence, n))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HARD)


def test_a_reference_is_known_by_its_errors_and_not_by_its_name(evidence: Evidence) -> None:
    assert look("E12", divided_by(evidence, "our own baseline", alexnets=True)).status is Status.FAIL
    assert look("E12", divided_by(evidence, "imagenet-alexnet", alexnets=False)).status is Status.PASS


def undecided(e: Evidence) -> Evidence:
    """Alone with PGD, CROWN decides no sample."""
    alone = replace(e, assessments=tuple(p for p in e.assessments if p.name in ("crown", "pgd")))
    return changed(alone, "crown", whole("verdicts", int(Verdict.UNKNOWN)))


def all_broken(d: dict) -> None:
    d["perturbed_predictions"] = (d["targets"] + 1) % 10
    d["verdicts"].fill_(int(Verdict.ATTACK_SUCCEEDED))


def none_broken(d: dict) -> None:
    d["perturbed_predictions"] = d["targets"].clone()
    d["verdicts"].fill_(int(Verdict.ATTACK_FAILED))


def allowing(times: float) -> Callable[[Evidence], Evidence]:
    """PGD breaks nothing, and CROWN's bounds let each logit move `times` as much as PGD moved the most moved one."""

    def of(e: Evidence) -> Evidence:
        e = changed(undecided(e), "pgd", none_broken)
        pgd, clean = piece_of(e, "pgd"), e.subject.clean_logits
        room = times * (pgd.tensor("perturbed_logits") - clean).abs().amax(1, keepdim=True)

        def bounds(d: dict) -> None:
            d["output_bounds"] = {"lower": clean - room, "upper": clean + room}

        return changed(e, "crown", bounds)

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (FAULTS["E7"], "the bound is the cause: crown_wide verifies"),
        (lambda e: without("pgd")(undecided(e)), "the cause is unknown, because no attack tried most of them"),
        (lambda e: changed(undecided(e), "pgd", all_broken), "the model is the cause: "),
        (allowing(50), "is 50 times as wide as the observed range of the logits; try alpha-crown or branch-and-bound"),
        (allowing(1.5), "its margins are small; try a smaller epsilon"),
    ],
)  # fmt: skip
def test_a_vacuous_certificate_says_who_is_to_blame(
    fault: Callable[[Evidence], Evidence], words: str, evidence: Evidence
) -> None:
    finding = look("E7", fault(evidence))
    assert finding.assessments == ("crown",)
    assert words in finding.each["crown"]


@pytest.mark.slow
def test_certificates_of_half_of_the_samples_are_not_vacuous(evidence: Evidence) -> None:
    def half(d: dict) -> None:
        d["verdicts"][::2] = int(Verdict.VERIFIED)

    assert look("E7", changed(undecided(evidence), "crown", half)).status is Status.PASS


def test_there_are_99_checks() -> None:
    sizes = {"A": 25, "B": 10, "C": 20, "D": 14, "E": 14, "F": 8, "G": 8}
    assert {letter: sum(c[0] == letter for c in CHECKS) for letter in sizes} == sizes


def test_every_row_of_the_table_of_checks_has_a_function() -> None:
    assert set(read_json(Path(sanity.__file__).with_name("checks.json"))["checks"]) <= set(CHECKS)


@pytest.mark.parametrize("check", list(CHECKS.values()), ids=list(CHECKS))
def test_row_is_complete(check) -> None:
    assert check.reasoning.endswith((".", ")"))
    assert check.remedy.endswith(".")
    assert check.source


@pytest.mark.slow
def test_rescaled_epsilon_of_8_bit_images(evidence: Evidence) -> None:
    """0.031 is not 8/255."""
    dataset = replace(evidence.subject.dataset, inputs=(evidence.subject.dataset.inputs * 255).round() / 255)
    eight = replace(evidence, subject=replace(evidence.subject, dataset=dataset))
    rounded = changed(eight, "pgd", metadata=region(epsilon=0.031))
    assert look("A6", rounded).reason.startswith("an epsilon is nearly")
    assert look("A6", changed(eight, "pgd", metadata=region(epsilon=8 / 255))).status is not Status.FAIL


@pytest.mark.slow
def test_a_result_that_used_examples_which_have_changed_since_is_stale(evidence: Evidence) -> None:
    used = {p.name: file_digest(p.artifacts.directory / DATA_FILE) for p in evidence.of("attacks") if p.name == "pgd"}

    def after(digests: dict[str, str]) -> Evidence:
        return changed(evidence, "square", metadata=lambda m: m["kwargs"].update(survivors_of=digests))

    assert look("G2", after(used)).status is Status.PASS
    finding = look("G2", after({"pgd": "0" * 64}))
    assert (finding.status, finding.assessments) == (Status.WARN, ("square",))
    assert "square: made with or from another pgd" in finding.reason


@pytest.mark.slow
def test_positive_control_fails_with_a_broken_attack_stack(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.assessments.attacks import assess

    monkeypatch.setattr(assess, "adapter_of", lambda _: lambda request, *_: request.inputs)
    assert look("A16", evidence).status is Status.FAIL


def in_colour(e: Evidence) -> Evidence:
    """Three channels, and values from 0.2 to 0.6."""
    return with_inputs(e, torch.linspace(0.2, 0.6, 60 * 3 * 9 * 7).reshape(60, 3, 9, 7))


@pytest.mark.slow
def test_positive_control_is_of_the_shape_and_the_range_of_the_samples(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windtunnel.assessments.attacks import assess

    coloured = in_colour(evidence)
    assert look("A16", coloured).status is Status.PASS
    made, real = [], assess.adapter_of

    def grey_only(row: object) -> Callable[..., torch.Tensor]:
        def attack(request, *others: object) -> torch.Tensor:
            made.append(request.inputs)
            found = real(row)(request, *others)
            found[:, 1:] = request.inputs[:, 1:]
            return found

        return attack

    monkeypatch.setattr(assess, "adapter_of", grey_only)
    assert look("A16", coloured).status is Status.FAIL  # attacks the first channel alone
    assert {tuple(x.shape[1:]) for x in made} == {(3, 9, 7)}
    assert all(0.2 <= float(x.min()) <= float(x.max()) <= 0.6 for x in made)
    assert look("A16", evidence).status is Status.PASS  # of grey images it leaves nothing out


@pytest.mark.slow
def test_seeds_that_disagree(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.evaluation.sanity import strength

    draws = iter(range(100))
    monkeypatch.setattr(strength, "rerun", lambda *_, **__: (torch.arange(40), torch.full((40,), next(draws) % 2 == 0)))
    assert look("D7", evidence).status is Status.WARN


@pytest.mark.slow
def test_other_samples_are_told_and_left_out(evidence: Evidence) -> None:
    """A9 names the assessment, and the checks that need it say why they did not run."""
    import shutil

    source = piece_of(evidence, "curve").artifacts.directory.parent
    copied = source.parent / "foreign"
    shutil.copytree(source, copied)
    data = torch.load(copied / "curve" / "robustness_data.pt")
    data["clean_inputs"] = data["clean_inputs"] * 0.5
    torch.save(data, copied / "curve" / "robustness_data.pt")
    (copied / "pgd" / "robustness_data.pt").write_bytes(b"no tensors")
    found = collect(evidence.params, evidence.subject, evidence.clean, copied)
    shutil.rmtree(copied)
    assert look("A9", found).assessments == ("curve",)
    assert look("A9", found).status is Status.FAIL
    assert look("C10", found).status is Status.NOT_RUN
    assert "curve" in look("C10", found).reason
    assert look("B1", found).status is Status.PASS  # the others are looked at


@pytest.mark.slow
def test_each_assessment_is_told_of_its_own_interval(evidence: Evidence) -> None:
    each = look("F2", with_params(evidence, thresholds={})).each
    assert len(set(each.values())) > 1
    assert all("points" in words for words in each.values())


def test_a_check_that_breaks_is_a_warning_so_that_no_model_switches_it_off() -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("nothing left")

    row = replace(CHECKS["A1"], look=explode)
    finding = run_check(row, SimpleNamespace(partial={}), with_full())
    assert finding.status is Status.WARN
    assert "nothing left" in finding.reason
    hard = run_check(replace(row, severity=Severity.HARD), SimpleNamespace(partial={}), with_full())
    assert (hard.status, hard.severity) == (Status.WARN, Severity.WARN)


def with_full():
    from windtunnel.params.results import Sanity

    return Sanity(profile="full")


def test_tiers_not_asked_for_are_shown_as_not_run() -> None:
    from windtunnel.params.results import Sanity

    finding = run_check(CHECKS["D1"], None, Sanity())
    assert finding.status is Status.NOT_RUN
    assert "sanity.profile: full" in finding.reason


def test_the_readme_states_how_many_checks_there_are():
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    assert f"check the evaluation itself: {len(registry())} of them" in readme
