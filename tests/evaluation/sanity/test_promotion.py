"""Before a promotion the checks that rerun attacks are made, unless the run made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.sanity.conftest import RUN
from tests.evaluation.sanity.tamper import quantised, with_model
from windtunnel.evaluation.sanity import promotion
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.validate import validate
from windtunnel.records.files import write_json
from windtunnel.records.layout import SANITY

pytestmark = pytest.mark.slow


@pytest.fixture
def found(evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """What `collect` gives, which a test may change; the run's own profile is `standard`."""
    monkeypatch.chdir(tmp_path)
    write_json({"kwargs": {"profile": "standard"}}, SANITY / "metadata.json")
    seen = [evidence]
    monkeypatch.setattr(promotion, "current_subject", lambda *_: None)
    monkeypatch.setattr(promotion, "read_artifacts", lambda _: None)
    monkeypatch.setattr(promotion, "collect", lambda *_: seen[0])
    monkeypatch.setattr(promotion, "read_train", lambda _: None)
    return seen


def test_masked_gradients_stop_a_promotion(found: list[Evidence], evidence: Evidence) -> None:
    params = validate(RUN)
    found[0] = with_model(evidence, quantised(evidence.subject.classifier.module))
    assert [line for line in promotion.failures_before_promotion(params) if "C8 failed" in line]


def test_they_are_not_made_twice_nor_where_params_leave_them_out(found: list[Evidence]) -> None:
    found.clear()  # anything that asks for the evidence fails
    params = validate(RUN)
    left_out = params.model_copy(update={"sanity": params.sanity.model_copy(update={"before_promotion": "standard"})})
    assert promotion.failures_before_promotion(left_out) == []
    write_json({"kwargs": {"profile": "full"}}, SANITY / "metadata.json")
    assert promotion.failures_before_promotion(params) == []
