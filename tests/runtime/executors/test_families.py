"""Every family gives equal bytes in this process, over processes and on Ray, and says what it lost."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache

import pytest
import torch

from windtunnel.assessments.attacks.assess import assess as attack
from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.queries.assess import assess as query
from windtunnel.assessments.sweeps.assess import assess as sweep
from windtunnel.assessments.verification.assess import assess as verify
from windtunnel.core.contracts import Verdict
from windtunnel.params.attacks import AttackEntry, QueryEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import VerificationEntry
from windtunnel.runtime import executors
from windtunnel.runtime.executors import dispatcher
from windtunnel.runtime.placement import VARIABLE

BUDGET = Budget(norm="Linf", epsilon=0.06)
# (how, schema, entry): small, but of several units of work.
ENTRIES = {
    "FGSM": (attack, AttackEntry, {"library": "torchattacks", "algorithm": "FGSM"}),
    "PGD": (
        attack,
        AttackEntry,
        {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 3, "step_size": 0.03}},
    ),
    "EvoBA": (query, QueryEntry, {"algorithm": "EvoBA", "params": {"generation_size": 4, "generations": 6}}),
    "SimBA": (query, QueryEntry, {"algorithm": "SimBA", "params": {"steps": 15}, "batch_size": 7}),
    "Square": (query, QueryEntry, {"library": "torchattacks", "algorithm": "Square", "params": {"n_queries": 10}}),
    "FGSM sweep": (sweep, SweepEntry, {"epsilons": [0, 0.05, 0.2], "refine": 3}),
    "PGD sweep": (
        sweep,
        SweepEntry,
        {
            "library": "torchattacks",
            "algorithm": "PGD",
            "epsilons": [0, 0.1],
            "budget": {"steps": 3, "step_size": 0.05},
        },
    ),
    "crown": (
        verify,
        VerificationEntry,
        {"library": "auto-LiRPA", "algorithm": "crown", "radius": {"max": 0.05, "tolerance": 0.02}},
    ),
    "cascade": (
        verify,
        VerificationEntry,
        {
            "library": "windtunnel",
            "algorithm": "cascade",
            "steps": ["attack", "branch-and-bound"],
            "params": {"domains": 40},
            "radius": {"max": 0.1, "tolerance": 0.02},
        },
    ),
    "Marabou": (verify, VerificationEntry, {"library": "Marabou", "algorithm": "linf-box", "timeout": 60}),
    "corruptions": (
        assess_suite,
        CorruptionEntry,
        {"corruptions": ["fog", "gaussian_noise"], "severities": [3], "upsample": 32},
    ),
}
_SMALL = {"Marabou": 3, "cascade": 6}
_MEASURED = {"runtime_per_sample"}


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    """As a worker has: sums differ in their last bits with the number of threads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(name, subject):
    """(result, the results below it)."""
    how, schema, given = ENTRIES[name]
    entry = schema.model_validate({"batch_size": 8, **given})
    subject = subject.subset(torch.arange(_SMALL.get(name, 20)))
    below = []
    if how is assess_suite:
        # The next corruption overwrites the images.
        result = assess_suite("it", entry, subject, lambda child: below.append(child.data["perturbed_inputs"].clone()))
    else:
        budget = Budget(norm="Linf", epsilon=0.005) if name == "Marabou" else BUDGET
        result = how("it", entry, budget, subject)
    return result, below


@pytest.fixture(scope="module")
def run_here(mlp_subject):
    """Return the results of an entry in this process, computed once for all tests."""

    @cache
    def results(name):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(VARIABLE, "here")
            return run(name, mlp_subject)

    return results


def require_same(one, other):
    """Equal bytes, but for what was measured."""
    (one, below), (other, below_other) = one, other
    assert one.metrics == other.metrics
    assert one.caveats == other.caveats
    assert one.data.keys() == other.data.keys()
    for key, value in one.data.items():
        if key not in _MEASURED:
            parts, others = (v if isinstance(v, dict) else {"": v} for v in (value, other.data[key]))
            for part, tensor in parts.items():
                assert tensor.numpy().tobytes() == others[part].numpy().tobytes(), (key, part)
    assert all(torch.equal(a, b) for a, b in zip(below, below_other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PGD", "cascade", "corruptions"])
def test_an_entry_that_goes_on_in_other_processes_has_equal_bytes(name, mlp_subject, run_here, monkeypatch):
    here = run_here(name)
    monkeypatch.setattr(executors, "WORTH_WORKERS", 0.0)
    monkeypatch.setattr(executors, "share_of_processors", lambda: 2)
    monkeypatch.setattr(executors, "free_memory", lambda: 2**40)
    monkeypatch.setattr(executors, "_most_workers", 1)
    spread = run(name, mlp_subject)
    assert executors.workers_used() == 2
    require_same(here, spread)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["processes:2", "ray:2"])
def test_every_family_is_equal_bytes_everywhere(mlp_subject, run_here, monkeypatch, asked):
    if asked.startswith("ray"):
        pytest.importorskip("ray")
    monkeypatch.setenv(VARIABLE, asked)
    for name in ENTRIES:
        require_same(run_here(name), run(name, mlp_subject))


class DiesFor(torch.nn.Module):
    """A model that ends any worker which asks it about one sample, be it changed a little."""

    def __init__(self, module, sample, home):
        super().__init__()
        self.module, self.sample, self.home = module, sample, home

    def forward(self, x):
        if os.getpid() != self.home and len(x) and float((x - self.sample).abs().amax((1, 2, 3)).min()) < 1e-6:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.module(x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FGSM", "Square", "FGSM sweep", "corruptions"])
def test_a_batch_that_ends_its_workers_is_an_error_and_the_rest_is_as_ever(mlp_subject, run_here, monkeypatch, name):
    # A new worker imports for seconds; test_executors shows how many deaths a batch may cause.
    monkeypatch.setattr(dispatcher, "DEATHS", 2)
    whole, below = run_here(name)
    sample = (below[0] if below else mlp_subject.dataset.inputs)[9]  # under a corruption the model sees nothing else
    module = DiesFor(mlp_subject.classifier.module, sample, os.getpid())
    broken = replace(mlp_subject, classifier=replace(mlp_subject.classifier, module=module))
    monkeypatch.setenv(VARIABLE, "processes:2")
    result, _ = run(name, broken)
    lost = result.data["verdicts"] == Verdict.ERROR
    assert lost[9]
    assert 1 <= lost.sum() <= 8
    assert torch.equal(result.data["verdicts"][~lost], whole.data["verdicts"][~lost])
    assert "batch_failed" in [caveat.code for caveat in result.caveats]
    assert result.metrics != whole.metrics
