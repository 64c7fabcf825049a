"""A second look at verdicts: it confirms sound ones, and finds certificates that are wrong."""

import pytest
import torch
from balls import budget, entry, first

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.audit import audit
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import read_artifacts, write_artifacts

EPSILON = 0.05


def written(result, subject: Subject, folder):
    write_artifacts(result, folder, subject, started=0.0)
    return read_artifacts(folder)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [("attack", "crown"), ("attack", "branch-and-bound")])
def test_sound_verdicts_are_reached_again_by_another_implementation(mlp_subject, tmp_path, steps):
    subject = first(mlp_subject, 12)
    result = assess("proof", entry("cascade", steps=list(steps)), budget(EPSILON), subject)
    found = audit(written(result, subject, tmp_path), subject, Norm.LINF, EPSILON, certified=100, asked=6)
    assert found.attacked == int((result.data["verdicts"] == Verdict.VERIFIED).sum())
    assert found.asked == 6
    assert found.agreed >= 4
    assert found.broken == found.contradicted == ()


@pytest.mark.parametrize("scale", [1.0, 1e-7])
def test_a_wrong_certificate_is_broken_and_contradicted_whatever_the_scale_of_the_logits(mlp_subject, tmp_path, scale):
    from dataclasses import replace

    from torch import nn

    class Scaled(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return scale * self.module(x)

    subject = first(mlp_subject, 4)
    classifier = replace(subject.classifier, module=Scaled(subject.classifier.module).eval())
    subject = replace(subject, classifier=classifier, clean_logits=scale * subject.clean_logits)
    result = assess("proof", entry("crown"), budget(0.3), subject)
    assert (result.data["verdicts"] != Verdict.VERIFIED).all()
    result.data["verdicts"][:] = int(Verdict.VERIFIED)
    result.data["decided_by"][:] = 0
    result.kwargs["decided_by_names"][:] = ["crown"]
    found = audit(written(result, subject, tmp_path), subject, Norm.LINF, 0.3, certified=100, asked=2)
    assert set(found.broken) == set(subject.dataset.ids)
    assert len(found.contradicted) == 2
    assert set(found.contradicted) < set(subject.dataset.ids)


def test_radii_are_certificates_too_and_one_that_is_too_large_is_broken(mlp_subject, tmp_path):
    subject = first(mlp_subject, 6)
    given = entry("crown", radius={"max": 0.3, "tolerance": 0.01})
    result = assess("proof", given, budget(0.2), subject)
    radii, broken = result.data["certified_radius"], result.data["broken_radius"]
    assert (radii < 0.2).all()
    found = audit(written(result, subject, tmp_path / "sound"), subject, Norm.LINF, 0.2, certified=100, asked=0)
    assert found.attacked == int((radii > 0).sum()) > 0
    assert found.broken == ()
    wrong = int((radii > 0).nonzero()[0])
    radii[wrong] = 1.1 * broken[wrong]
    found = audit(written(result, subject, tmp_path / "wrong"), subject, Norm.LINF, 0.2, certified=100, asked=0)
    assert found.broken == (subject.dataset.ids[wrong],)


def test_without_a_verdict_nothing_is_asked_and_it_says_so(mlp_subject, tmp_path):
    subject = first(mlp_subject, 2)
    result = assess("proof", entry("ibp"), budget(0.3), subject)
    result.data["verdicts"][:] = int(Verdict.UNKNOWN)
    found = audit(written(result, subject, tmp_path), subject, Norm.LINF, 0.3, certified=100, asked=2)
    assert (found.attacked, found.asked) == (0, 0)
    assert found.unasked == "no sample was verified or falsified"
    assert torch.equal(result.data["verdicts"], torch.full((2,), int(Verdict.UNKNOWN)))
