"""An entry that builds on others reads their results of the present params, or computes them first."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools.recompute import differences, of_entry
from windtunnel.assessments.corrupted import on_corrupted_images
from windtunnel.assessments.failures import failed_result
from windtunnel.assessments.run import earlier_result, result_of, take_back, task_on
from windtunnel.assessments.task import Task
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.statistics import two_phase_rate
from windtunnel.core.subject import Subject
from windtunnel.evaluation.summary.evidence import region_evidence
from windtunnel.evaluation.validate import validate
from windtunnel.operations.api.pipeline import in_order, resolved_directly
from windtunnel.operations.resolve.build import Resolver
from windtunnel.operations.resolve.closure import Memory
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import read_artifacts, write_artifacts
from windtunnel.records.layout import HERE
from windtunnel.records.metadata import Failure
from windtunnel.records.regions import PerturbationBall, region_of
from windtunnel.registry.plugins import families

PGD = {"library": "torchattacks", "algorithm": "PGD", "budget": {"norm": "Linf", "epsilon": 0.1, "steps": 1}}
CROWN = {"library": "windtunnel", "algorithm": "cascade", "steps": ["crown"], "examples_from": ["pgd"]}


RAW = {"data": {"source": "digits"}, "model": {"source": "train"}, "budget": {"norm": "Linf", "epsilon": 0.1}}


def tasks(subject: Subject, **blocks: object) -> dict[str, Task[Entry]]:
    """Return the tasks of a params.yaml in the current directory, by name, as `resolve` leaves them."""
    params, of_run = validate({**RAW, "seed": subject.seed, **blocks}, "params"), {}
    for of, name, entry in entries(params):
        resolved = resolved_directly(params, of, name, entry)
        resolved.write()
        of_run[name] = task_on(families()[of], resolved, subject)
    return of_run


@pytest.fixture
def subject(digits_subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.chdir(tmp_path)
    return digits_subject.choose(40, "first", 0)


def test_examples_of_an_attack_of_other_params_do_not_falsify(subject: Subject) -> None:
    weak = tasks(subject, attacks={"pgd": PGD}, verification={"crown": CROWN})
    written = write_artifacts(
        result_of(families()["attacks"], weak["pgd"]), HERE.robustness / "pgd", subject, started=0.0
    )
    (reference,) = weak["crown"].entry.references()
    assert earlier_result(weak["crown"], reference).directory == written.directory
    strong = {**PGD, "budget": {**PGD["budget"], "steps": 10}}
    now = tasks(subject, attacks={"pgd": strong}, verification={"crown": CROWN})["crown"]
    again = earlier_result(now, reference)
    assert again.directory != written.directory
    assert again.metadata.call_kwargs["steps"] == 10
    certificates = result_of(families()["verification"], now)
    assert certificates.kwargs["examples_from"] == {"pgd": again.digest()}
    assert certificates.metrics["decided_by"]["examples"] == int(
        (again.tensor("verdicts")[subject.clean_correct] == 1).sum()
    )


def test_a_result_that_is_not_there_is_computed_once_and_its_own_stage_takes_it_back(
    subject: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tasks(subject, attacks={"pgd": PGD}, verification={"crown": CROWN})["crown"]
    (reference,) = task.entry.references()
    first = earlier_result(task, reference)
    assert "verification.crown.examples_from: computes attacks.pgd first" in capsys.readouterr().out
    assert earlier_result(task, reference).directory == first.directory
    assert not capsys.readouterr().out
    back = take_back(first.directory.name, HERE.robustness / "pgd", subject)
    assert back is not None
    assert back.digest() == read_artifacts(HERE.robustness / "pgd").digest()
    assert earlier_result(task, reference).directory == HERE.robustness / "pgd"


def test_a_result_of_another_model_is_computed_again(subject: Subject) -> None:
    task = tasks(subject, attacks={"pgd": PGD}, verification={"crown": CROWN})["crown"]
    (reference,) = task.entry.references()
    first = earlier_result(task, reference)
    other = replace(subject, classifier=replace(subject.classifier, digest="another"))
    again = earlier_result(replace(task, all_samples=other, subject=other), reference)
    assert again.metadata.provenance.model_digest == "another"
    assert torch.equal(again.tensor("verdicts"), first.tensor("verdicts"))


def test_entries_that_others_build_on_come_first() -> None:
    raw = {**RAW, "attacks": {"rest": {**PGD, "on": {"survivors_of": ["pgd"]}}, "pgd": PGD}}
    assert [name for _, name, _ in in_order(validate(raw, "params"))] == ["pgd", "rest"]


SMALL = {"budget": {"norm": "Linf", "epsilon": 0.05}}
CROWN_SMALL = {"library": "auto-LiRPA", "algorithm": "crown", **SMALL}


def test_an_attack_on_what_no_verification_certified_attacks_no_other_sample(subject: Subject) -> None:
    attack = {**PGD, **SMALL, "on": {"uncertified_by": ["crown"]}}
    task = tasks(subject, attacks={"rest": attack}, verification={"crown": CROWN_SMALL})["rest"]
    result = result_of(families()["attacks"], task)
    certificates = earlier_result(task, next(task.entry.references()))
    certified = certificates.tensor("verdicts") == Verdict.VERIFIED
    assert 5 < certified.sum() < subject.clean_correct.sum()
    assert torch.equal(result.data["attacked"], subject.clean_correct & ~certified)
    assert (result.data["verdicts"][certified] == Verdict.ATTACK_FAILED).all()
    assert result.metrics["adversarial_accuracy"] >= certified.double().mean()
    assert result.kwargs["uncertified_by"] == {"crown": certificates.digest()}
    assert "uncertified_only" in [caveat.code for caveat in result.caveats]
    wider = tasks(subject, attacks={"rest": {**attack, "budget": PGD["budget"]}}, verification={"crown": CROWN_SMALL})
    attacked = result_of(families()["attacks"], wider["rest"]).data["attacked"]
    assert torch.equal(attacked, subject.clean_correct)  # a certificate of a smaller ball says nothing


def test_a_verification_takes_over_what_others_have_decided(subject: Subject) -> None:
    on = {"survivors_of": ["pgd"], "uncertified_by": ["few"]}
    blocks = {"few": {**CROWN_SMALL, "samples": {"n": 20}}, "rest": {**CROWN_SMALL, "on": on}, "alone": CROWN_SMALL}
    of_run = tasks(subject, attacks={"pgd": {**PGD, **SMALL}}, verification=blocks)
    few, rest, alone = (result_of(families()["verification"], of_run[name]).data for name in blocks)
    by_few = few["verdicts"] == Verdict.VERIFIED
    kwargs = result_of(families()["verification"], of_run["rest"]).kwargs
    assert 5 < by_few.sum() < 20
    took_over = rest["decided_by"] == kwargs["decided_by_names"].index("certificates")
    assert torch.equal(took_over[:20], by_few)
    assert not took_over[20:].any()
    assert torch.equal(rest["lower_margins"][took_over], few["lower_margins"][by_few])
    assert torch.equal(rest["output_bounds"]["lower"][took_over], few["output_bounds"]["lower"][by_few])
    assert torch.equal(rest["verdicts"] == Verdict.VERIFIED, alone["verdicts"] == Verdict.VERIFIED)
    assert [*kwargs["uncertified_by"], *kwargs["survivors_of"]] == ["few", "pgd"]


def test_a_change_of_an_entry_of_another_family_runs_what_builds_on_it_again(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory.json")

    def digests(domains: int) -> dict[str, str]:
        search = {"library": "windtunnel", "algorithm": "branch-and-bound", "params": {"domains": domains}}
        raw = {
            **RAW,
            "verification": {"bab": search},
            "attacks": {"pgd": {**PGD, "on": {"uncertified_by": ["bab"]}}, "other": PGD},
        }
        resolver = Resolver(validate(raw, "params"), memory, tmp_path)
        labels = (("verify", "bab"), ("attack", "pgd"), ("attack", "other"))
        return {name: resolver.entry(stage, name).digest for stage, name in labels}

    before, after = digests(10), digests(20)
    assert {name for name in before if before[name] != after[name]} == {"bab", "pgd"}


@pytest.mark.parametrize("family", ["attacks", "verification"])
def test_a_random_part_of_what_was_left_gives_one_estimate_for_all_samples(family: str, subject: Subject) -> None:
    cheap, draw = {**PGD, **SMALL}, {"n": 20, "selection": "random"}
    first = {"attacks": "crown", "verification": "ibp"}[family]
    on = {"uncertified_by": [first], **({"survivors_of": ["cheap"]} if family == "verification" else {})}
    second = {"attacks": {**PGD, "budget": {**SMALL["budget"], "steps": 10}}, "verification": CROWN_SMALL}[family]
    blocks = {"attacks": {"cheap": cheap}, "verification": {first: {**CROWN_SMALL, "algorithm": first}}}
    blocks[family]["rest"] = {**second, "on": on, "samples": draw}
    of_run = tasks(subject, **blocks)
    rest = result_of(families()[family], of_run["rest"])
    earlier = {r.name: earlier_result(of_run["rest"], r) for r in of_run["rest"].entry.references()}
    certified = earlier[first].tensor("verdicts") == Verdict.VERIFIED
    broken = (
        earlier["cheap"].tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
        if "cheap" in earlier
        else ~subject.clean_correct
    )
    undecided = subject.clean_correct & ~certified & ~broken
    names = [*rest.kwargs["sample_names"]]
    tried = torch.tensor([bool(undecided[subject.dataset.ids.index(name)]) for name in names])
    won = {"attacks": Verdict.ATTACK_FAILED, "verification": Verdict.VERIFIED}[family]
    wins = int((tried & (rest.data["verdicts"] == won)).sum())
    rate = two_phase_rate(40, int(certified.sum()), int(undecided.sum()), wins, int(tried.sum()))
    assert 0 < tried.sum() < undecided.sum()
    assert {**rest.metrics, **rate.metrics("two_phase_accuracy"), "two_phase_n": 40} == rest.metrics
    whole = tasks(subject, **{**blocks, family: {**blocks[family], "rest": {**second, "on": on}}})["rest"]
    assert (
        "two_phase_accuracy" not in result_of(families()[family], whole).metrics
    )  # one phase: its own accuracy says it


def test_without_a_random_draw_or_with_a_first_phase_on_a_part_there_is_no_such_estimate(subject: Subject) -> None:
    rest = {**PGD, **SMALL, "on": {"uncertified_by": ["crown"]}}
    for samples, of_crown in (({"n": 20}, {}), ({"n": 20, "selection": "random"}, {"samples": {"n": 30}})):
        blocks = {"rest": {**rest, "samples": samples}}
        task = tasks(subject, attacks=blocks, verification={"crown": {**CROWN_SMALL, **of_crown}})["rest"]
        assert "two_phase_accuracy" not in result_of(families()["attacks"], task).metrics


SPARKLES = {"library": "windtunnel", "algorithm": "sparkles", "severities": [1, 5]}


def on_sparkles(*names: str, **keys: object) -> dict[str, object]:
    return {**PGD, **SMALL, "on": {"corrupted_by": [*names]}, **keys}


@pytest.mark.parametrize("names", [("dots",), ("dots/sparkles-5",)])
def test_an_attack_on_corrupted_images_is_around_these_and_recomputes(names: tuple[str, ...], subject: Subject) -> None:
    task = tasks(subject, attacks={"it": on_sparkles(*names)}, corruptions={"dots": SPARKLES})["it"]
    result = result_of(families()["attacks"], task)
    suite = earlier_result(task, next(task.entry.references()))
    parts = {f"dots/sparkles-{s}": read_artifacts(suite.directory / f"sparkles-{s}") for s in (1, 5)}
    assert result.kwargs["corrupted_by"] == {
        name: part.digest() for name, part in parts.items() if len(names[0]) == 4 or name == names[0]
    }
    for index, name in enumerate(result.kwargs["corrupted_by"]):
        drawn = result.data["corrupted_by"] == index
        assert 10 < drawn.sum() <= 40
        assert torch.equal(result.data["clean_inputs"][drawn], parts[name].tensor("perturbed_inputs")[drawn])
        assert torch.equal(result.data["clean_predictions"][drawn], parts[name].tensor("perturbed_predictions")[drawn])
    moved = (result.data["perturbed_inputs"] - result.data["clean_inputs"]).abs().flatten(1).amax(1)
    assert 0 < moved.max() <= 0.05 + 1e-6
    right = result.data["clean_predictions"] == subject.dataset.targets
    assert torch.equal(result.data["attacked"], right)
    assert result.metrics["corrupted_accuracy"] == right.double().mean()
    assert "clean_accuracy" not in result.metrics
    written = write_artifacts(result, HERE.robustness / "it", task.subject, started=0.0)
    assert "Linf\xa0≤\xa00.05 around images corrupted by dots" in written.headline
    recomputed = of_entry("attacks", task.entry, written, result.semantics.algorithm, Params.model_validate(RAW))
    assert [*differences(written.metrics, recomputed)] == []


def test_a_break_of_a_corrupted_image_breaks_no_clean_sample(subject: Subject) -> None:
    strong = on_sparkles("dots/sparkles-5", budget={"norm": "Linf", "epsilon": 0.1, "steps": 10})
    of_run = tasks(subject, attacks={"it": strong, "plain": {**PGD, **SMALL}}, corruptions={"dots": SPARKLES})
    it, plain = (
        write_artifacts(
            result_of(families()["attacks"], of_run[name]), HERE.robustness / name, of_run[name].subject, started=0.0
        )
        for name in ("it", "plain")
    )
    assert (it.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED).sum() > (
        plain.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED
    ).sum()
    for ball in (PerturbationBall(Norm.LINF, 0.1), PerturbationBall(Norm.LINF, 0.5)):
        alone, both = (region_evidence(ball, plain, of) for of in ([plain], [plain, it]))
        assert torch.equal(alone.states, both.states)
        assert alone.draws == both.draws
    assert region_of(it) is None


def test_survivors_and_certificates_around_corrupted_images_share_their_centre(subject: Subject) -> None:
    dots = {"corrupted_by": ["dots"]}
    crown = {**CROWN_SMALL, "on": dots}
    rest = {**PGD, **SMALL, "on": {**dots, "uncertified_by": ["crown"]}}
    of_run = tasks(subject, attacks={"rest": rest}, verification={"crown": crown}, corruptions={"dots": SPARKLES})
    certificates, result = (
        result_of(families()[family], of_run[name]) for family, name in (("verification", "crown"), ("attacks", "rest"))
    )
    certified = certificates.data["verdicts"] == Verdict.VERIFIED
    right = certificates.data["clean_predictions"] == subject.dataset.targets
    assert torch.equal(certificates.data["clean_inputs"], result.data["clean_inputs"])
    assert certified.any()
    assert torch.equal(result.data["attacked"], right & ~certified)


def test_the_order_of_the_corruptions_that_an_entry_names_changes_no_image(subject: Subject) -> None:
    names = [f"dots/sparkles-{severity}" for severity in (1, 5)]
    blocks = {"one": on_sparkles(*names), "other": on_sparkles(*names[::-1])}
    of_run = tasks(subject, attacks=blocks, corruptions={"dots": SPARKLES})
    one, other = (result_of(families()["attacks"], of_run[name]) for name in blocks)
    assert torch.equal(one.data["clean_inputs"], other.data["clean_inputs"])
    assert torch.equal(one.data["corrupted_by"], other.data["corrupted_by"])


def test_a_result_on_images_of_a_changed_suite_is_computed_again(subject: Subject) -> None:
    dots = {"corrupted_by": ["dots"]}
    rest = {**PGD, **SMALL, "on": {**dots, "uncertified_by": ["crown"]}}
    blocks = {"attacks": {"rest": rest}, "verification": {"crown": {**CROWN_SMALL, "on": dots}}}
    before = tasks(subject, **blocks, corruptions={"dots": SPARKLES})
    certificates = result_of(families()["verification"], before["crown"])
    of_the_run = replace(before["crown"].subject, resolved="before")
    write_artifacts(certificates, HERE.robustness / "crown", of_the_run, started=0.0)
    of_now = tasks(subject, **blocks, corruptions={"dots": {**SPARKLES, "severities": [2, 4]}})
    of_now["crown"].resolved.model_copy(update={"digest": "now"}).write()  # `resolve` covers what the suite is
    now = of_now["rest"]
    reference = next(r for r in now.entry.references() if r.name == "crown")
    again = earlier_result(now, reference)
    assert not torch.equal(again.tensor("clean_inputs"), certificates.data["clean_inputs"])


def test_a_failed_entry_on_corrupted_images_says_which_images(subject: Subject) -> None:
    task = tasks(subject, attacks={"it": on_sparkles("dots")}, corruptions={"dots": SPARKLES})["it"]
    failed = failed_result(task, "attacks", Failure(reason="no reason", is_temporary=False))
    written = write_artifacts(failed, HERE.robustness / "it", task.subject, started=0.0)
    assert region_of(written) is None
    assert "around images corrupted by dots" in written.headline


def test_a_draw_that_the_suite_had_already_stays_the_draw_of_the_entry(subject: Subject) -> None:
    samples = {"n": 10, "selection": "random"}
    entry = on_sparkles("dots", samples=samples)
    task = tasks(subject, attacks={"it": entry}, corruptions={"dots": {**SPARKLES, "samples": samples}})["it"]
    result = result_of(families()["attacks"], task)
    assert len(result.data["verdicts"]) == 10
    earlier = {"dots": earlier_result(task, next(task.entry.references()))}
    on_images, _ = on_corrupted_images(replace(task, earlier=earlier))
    assert on_images.subject.dataset.chosen == task.subject.dataset.chosen != {}


def test_the_suite_takes_back_the_images_that_an_attack_has_computed_first(subject: Subject) -> None:
    of_run = tasks(subject, attacks={"it": on_sparkles("dots")}, corruptions={"dots": SPARKLES})
    reference = of_run["it"].entry.corrupted_by[0]
    first = earlier_result(of_run["it"], reference)
    assert not (HERE.robustness / "dots").exists()  # DVC empties a stage's outputs before it runs
    take_back(first.directory.name, HERE.robustness / "dots", of_run["dots"].subject)
    assert read_artifacts(HERE.robustness / "dots" / "sparkles-5").metadata.name == "sparkles-5"
    assert earlier_result(of_run["it"], reference).directory == HERE.robustness / "dots"
    stronger = {**SPARKLES, "severities": [2, 4]}
    again = tasks(subject, attacks={"it": on_sparkles("dots")}, corruptions={"dots": stronger})["it"]
    assert earlier_result(again, reference).directory != HERE.robustness / "dots"


def test_a_change_of_a_corruption_runs_the_attack_on_its_images_again(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory.json")

    def digests(severities: list[int]) -> dict[str, str]:
        blocks = {"attacks": {"it": on_sparkles("dots"), "plain": PGD}, "corruptions": {"dots": SPARKLES}}
        blocks["corruptions"]["dots"] = {**SPARKLES, "severities": severities}
        resolver = Resolver(validate({**RAW, **blocks}, "params"), memory, tmp_path)
        assert resolver.entry("attack", "plain").work.builds_on == {}
        return {name: resolver.entry(*name.split("@")).digest for name in ("attack@it", "attack@plain", "corrupt@dots")}

    before, after = digests([1, 5]), digests([1, 4])
    assert {name for name in before if before[name] != after[name]} == {"attack@it", "corrupt@dots"}
