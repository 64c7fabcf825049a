"""An entry that fails at run time is recorded with its reason, and everything after it runs."""

import errno

import pytest
import torch

import windtunnel
from windtunnel.assessments.failures import failure_of
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import InfrastructureError, PrerequisiteError, UnsoundError, UserError


def refuses(model, inputs, labels, budget, seed):
    raise ValueError("this model does not binarise its inputs")


@pytest.fixture(scope="module")
def result(linear_subject):
    data = linear_subject.dataset
    entries = ["fgsm", refuses]
    return windtunnel.assess(
        linear_subject.classifier.module, data.inputs[:40], data.targets[:40], budget="Linf 0.1", attacks=entries
    )


def test_the_other_entries_have_their_results(result):
    assert result["fgsm"].metadata.failure is None
    assert "fgsm/adversarial_accuracy" in result.metrics


def test_a_failed_entry_has_the_verdict_error_for_every_sample_and_no_rate(result):
    failed = result["refuses"]
    assert set(failed.tensor("verdicts").tolist()) == {int(Verdict.ERROR)}
    assert torch.equal(failed.tensor("perturbed_inputs"), failed.tensor("clean_inputs"))
    assert "this model does not binarise" in failed.metadata.failure.reason
    assert not failed.metadata.failure.is_temporary
    assert "adversarial_accuracy" not in failed.metrics


def test_a_failed_entry_is_a_hard_failure_of_the_run(result):
    lines = result["summary"].metadata.kwargs.extra["hard_failures"]
    assert any("attacks.refuses failed" in line and "does not binarise" in line for line in lines)
    assert result["summary"].metrics["hard_failures"] == len(lines)


def test_the_report_and_the_saved_folder_name_the_failed_entry(result, tmp_path):
    result.report(tmp_path / "report.html")
    assert "does not binarise" in (tmp_path / "report.html").read_text()
    result.report(tmp_path / "report.pdf")
    result.save(tmp_path / "saved")
    assert "refuses" in windtunnel.read(tmp_path / "saved")
    assert "refuses" in result.per_sample


def test_one_attack_asked_for_alone_raises_its_error(linear_subject):
    data = linear_subject.dataset
    with pytest.raises(UserError, match="does not binarise"):
        windtunnel.attack(
            linear_subject.classifier.module, data.inputs[:4], data.targets[:4], refuses, budget="Linf 0.1"
        )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
        ConnectionResetError("peer"),
        TimeoutError(),
        InfrastructureError("2 workers in a row died"),
    ],
)
def test_memory_network_and_lost_workers_may_pass(error):
    assert failure_of(error, "attacks.x").is_temporary


def test_an_error_raised_from_one_that_may_pass_may_pass_too():
    error = ValueError("no answer")
    error.__cause__ = ConnectionError("refused")
    assert failure_of(error, "attacks.x").is_temporary


@pytest.mark.parametrize(
    "error", [ValueError("no"), UnsoundError("no"), FileNotFoundError("weights"), SystemExit(0), NotImplementedError()]
)
def test_refusals_that_every_machine_would_repeat_are_kept(error):
    failure = failure_of(error, "attacks.x")
    assert failure.reason
    assert not failure.is_temporary


@pytest.mark.parametrize("error", [PrerequisiteError("run it first"), OSError(errno.ENOSPC, "no space")])
def test_what_leaves_nothing_to_record_stops_the_run(error):
    with pytest.raises(type(error)):
        failure_of(error, "attacks.x")
