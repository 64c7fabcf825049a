"""`windtunnel verify --audit`: what it prints, and its exit code."""

import pytest
from click.testing import CliRunner

from tests.evaluation.sanity.tamper import changed
from windtunnel.cli.verify import verify
from windtunnel.core.contracts import Verdict
from windtunnel.evaluation.sanity.evidence import Evidence

pytestmark = pytest.mark.slow


def audit(monkeypatch, evidence: Evidence, name: str, verdicts: int = 2):
    for place, answer in (
        ("windtunnel.boundary.params.load_params", evidence.params),
        ("windtunnel.assessments.clean.subject.current_subject", evidence.subject),
        ("windtunnel.records.artifacts.read_artifacts", evidence.clean),
        ("windtunnel.evaluation.sanity.evidence.collect", evidence),
    ):
        monkeypatch.setattr(place, lambda *_, answer=answer: answer)
    return CliRunner().invoke(verify, ["--audit", name, "--verdicts", str(verdicts)])


def test_sound_certificates_pass(monkeypatch, evidence):
    run = audit(monkeypatch, evidence, "crown")
    assert run.exit_code == 0, run.output
    assert "certified samples attacked in float64, 0 broken" in run.output
    assert "2 verdicts checked by another implementation" in run.output


def test_wrong_certificates_end_it_with_code_1_and_their_names(monkeypatch, evidence):
    wrong = changed(evidence, "crown_wide", lambda d: d["verdicts"].fill_(int(Verdict.VERIFIED)))
    run = audit(monkeypatch, wrong, "crown_wide", 0)
    assert run.exit_code == 1
    assert "crown_wide: contradicted: " in run.output


def test_a_name_that_is_no_verification_is_refused(monkeypatch, evidence):
    run = audit(monkeypatch, evidence, "crwn")
    assert "Did you mean 'crown'?" in str(run.exception)
