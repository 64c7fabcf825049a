"""Extremes that are honest: few samples, sweeps that end early, a model that learned nothing, many steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gallery.case import NAIVE, params_of, run_in, subject_with
from tests.evaluation.sanity.tamper import changed, failing
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.check import Status
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.gradients import POINTS
from windtunnel.evaluation.sanity.rates import significantly_more
from windtunnel.evaluation.sanity.run import registry, run_check

pytestmark = pytest.mark.slow


def status(check: str, evidence: Evidence) -> Status:
    return run_check(registry()[check], evidence, evidence.params.sanity).status


def sweep(epsilons: list[float], lost: list[int], tried: int = 60) -> Callable[[dict[str, Tensor]], None]:
    """A sweep over these epsilons of which the first `lost` of `tried` samples, all right at first, are misclassified."""

    def change(data: dict[str, Tensor]) -> None:
        targets = data["targets"][:tried]
        for key, value in list(data.items()):
            if isinstance(value, Tensor) and value.ndim and len(value) == 60:
                data[key] = value[:tried]
        wrong = torch.arange(tried) < torch.tensor(lost)[:, None]
        data.update(epsilons=torch.tensor(epsilons), clean_predictions=targets.clone())
        data["sweep_predictions"] = torch.where(wrong, (targets + 1) % 10, targets)

    return change


@pytest.mark.parametrize(
    ("epsilons", "lost", "wanted"),
    [
        ([0.0, 0.01, 0.02, 0.03], [0, 0, 0, 0], Status.PASS),  # robust so far: F5 says that the curve was cut off
        ([0.0, 0.1, 0.2, 0.3], [0, 5, 5, 5], Status.WARN),  # five at first, and no more in twice the distance
        ([0.0, 0.1, 0.11, 0.12], [0, 5, 5, 5], Status.PASS),  # in a fifth of the distance one was to be expected
        ([0.0, 0.1, 0.3, 0.5], [0, 0, 0, 0], Status.WARN),  # every image can be grey
        ([0.0, 0.1, 0.2, 0.3], [0, 5, 9, 14], Status.PASS),
    ],
)
def test_a_plateau_is_where_samples_were_to_be_lost_and_were_not(
    epsilons: list[float], lost: list[int], wanted: Status, evidence: Evidence
) -> None:
    assert status("C11", changed(evidence, "curve", sweep(epsilons, lost))) is wanted


def test_five_samples_make_no_plateau(evidence: Evidence) -> None:
    few = changed(evidence, "curve", sweep([0.0, 0.1, 0.2, 0.3], [0, 1, 1, 1], tried=5))
    assert status("C11", few) is Status.PASS


def test_one_rise_of_many_steps_is_chance() -> None:
    assert significantly_more(5, 0)
    assert not significantly_more(5, 0, among=20)
    assert significantly_more(12, 0, among=20)


class Dead(nn.Module):
    """What is left of a network whose last hidden layer died in training: its biases."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(10.0) + 0 * x.flatten(1).sum(1, keepdim=True)


def test_a_model_that_learned_nothing_hides_nothing(mlp_subject: Subject, tmp_path: Path) -> None:
    data = mlp_subject.subset(torch.arange(40)).dataset
    evidence = run_in(tmp_path, subject_with(Dead(), data), params_of({"attacks": NAIVE}))
    for check in ("B4", "C8"):
        assert status(check, evidence) is Status.NOT_APPLICABLE, check
    # Where all samples are of one class, one answer is what a good model gives too.
    nines = data.subset((data.targets == 9).nonzero().flatten())
    evidence = run_in(tmp_path, subject_with(Dead(), nines), params_of({"attacks": NAIVE}))
    assert status("C8", evidence) is Status.FAIL
    assert status("B4", evidence) is Status.WARN  # FGSM stood still, PGD moved


def test_the_passes_of_the_loss_surface_do_not_grow_with_the_samples(evidence: Evidence) -> None:
    asked = 0

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal asked
        asked += len(inputs[0])

    module = evidence.subject.classifier.module
    hook = module.register_forward_pre_hook(count)
    try:
        status("C13", evidence)
        few, asked = asked, 0
        status("C13", replace(evidence, subject=evidence.subject.subset(torch.arange(5)), notes={}))
    finally:
        hook.remove()
    assert 0.9 * POINTS <= few <= 1.1 * POINTS
    assert 0.9 * POINTS <= asked <= 1.1 * POINTS


def test_an_idle_attack_beside_one_that_works_is_weak_and_not_unsound(evidence: Evidence) -> None:
    def idle(e: Evidence, *names: str) -> Evidence:
        for name in names:
            e = changed(
                e, name, lambda d: d.update(perturbed_inputs=d["clean_inputs"], perturbed_predictions=d["targets"])
            )
        return failing(e, *names)

    assert status("B4", idle(evidence, "fgsm")) is Status.WARN
    without_square = replace(evidence, assessments=tuple(p for p in evidence.assessments if p.name != "square"))
    assert status("B4", idle(without_square, "fgsm", "twin", "pgd")) is Status.FAIL


def test_under_l2_clipping_to_the_range_is_no_unused_budget(evidence: Evidence) -> None:
    def shortened(d: dict) -> None:
        d["perturbed_inputs"] = d["clean_inputs"] + 0.5 * (d["perturbed_inputs"] - d["clean_inputs"])

    assert status("D6", failing(changed(evidence, "pgd_l2", shortened), "pgd_l2")) is Status.PASS
    assert status("D6", failing(changed(evidence, "pgd", shortened), "pgd")) is Status.WARN


def test_classes_that_look_alike_are_no_wrong_labels() -> None:
    """Of two classes that overlap the model prefers one; neighbours of both labels are around every sample."""
    from windtunnel.evaluation.sanity.samples import labels_are_right

    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(400, 2, generator=generator)
    truth = (torch.rand(400, generator=generator) < 0.75).long()  # one in four of the other class, everywhere
    flipped = (inputs[:, 0] > 0.5).long()
    for targets, wanted in ((truth, False), (torch.where(torch.arange(400) % 8 == 0, 1 - flipped, flipped), True)):
        right = torch.ones(400, dtype=torch.int64) if not wanted else flipped
        logits = torch.nn.functional.one_hot(right, 2) * 4.0
        data = Dataset(inputs, targets, tuple(map(str, range(400))), ("a", "b"))
        subject = SimpleNamespace(dataset=data, clean_logits=logits)
        evidence = SimpleNamespace(subject=subject, data=data, named=lambda mask: [])
        assert labels_are_right(evidence, 0.05).flagged is wanted
