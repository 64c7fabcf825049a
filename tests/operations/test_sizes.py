"""What a run will need: the sizes that `windtunnel check` says, and what it refuses."""

import copy
import dataclasses
import io
import shutil
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from windtunnel.cli import compatibility
from windtunnel.core import machine
from windtunnel.core.contracts import Caveat
from windtunnel.core.subject import Subject
from windtunnel.evaluation.validate import validate
from windtunnel.operations import estimate
from windtunnel.operations.api.pipeline import assess_subject
from windtunnel.reporting.answers import RoomAnswer

N = 60
PARAMS = {
    "data": {"source": "function", "function": "given:directly", "class_names": 10},
    "model": {"source": "function", "function": "given:directly"},
    "budget": {"norm": "Linf", "epsilon": 0.1},
    "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "FGSM", "batch_size": 20}},
    "sweeps": {"sweep": {"epsilons": [0, 0.05], "samples": {"n": 20}}},
    "verification": {"crown": {"library": "auto-LiRPA", "algorithm": "crown"}},
    "corruptions": {"suite": {"algorithm": "fog", "severities": [1, 3], "upsample": 32}},
}


def _params(**changes: object):
    return validate({**copy.deepcopy(PARAMS), **changes}, "test")


@pytest.fixture(scope="module")
def subject(linear_subject: Subject) -> Subject:
    return linear_subject.subset(torch.arange(N))


@pytest.mark.parametrize("inputs", ["all", 10])
def test_the_sizes_that_are_told_are_those_on_disk(subject, inputs):
    params = _params(storage={"inputs": inputs})
    found = assess_subject(params, subject, None)
    told = {size.name: size.bytes for size in estimate.sizes_of(params, subject.dataset, None)}
    for name in ("attacks.fgsm", "sweeps.sweep", "verification.crown", "corruptions.suite"):
        folder = found.place.robustness / name.partition(".")[2]
        there = sum(path.stat().st_size for path in folder.rglob("robustness_data.pt"))
        # A file of torch's is never below a few kilobytes, which matters at 60 samples alone.
        assert told[name] / 3 - 10_000 <= there <= 3 * told[name] + 10_000 * len(list(folder.rglob("*.pt"))), name


def test_fewer_images_are_fewer_bytes_and_other_tensors_stay(subject):
    whole = estimate.sizes_of(_params(), subject.dataset, None)
    few = estimate.sizes_of(_params(storage={"inputs": 10}), subject.dataset, None)
    assert estimate.total(few) < estimate.total(whole)
    assert estimate.sizes_of(_params(), subject.dataset, None, keep=10)[0] == few[0]
    (fgsm, *_), image = few, 4 * subject.dataset.inputs[0].numel()
    assert fgsm.bytes > 2 * 10 * image


def test_memory_is_what_autograd_stores_of_a_batch_no_larger_than_the_samples(subject):
    from torch import nn

    pixels = subject.dataset.inputs[0].numel()
    module = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 700), nn.ReLU(inplace=True), nn.Linear(700, 10))
    classifier = dataclasses.replace(subject.classifier, module=module)
    assert estimate._activation_bytes(classifier, subject.dataset) == (4 * (pixels + 700), 4 * 700)

    def memory(batch_size):
        fgsm = {**PARAMS["attacks"]["fgsm"], "batch_size": batch_size}
        params = _params(attacks={"fgsm": fgsm}, sweeps={}, verification={}, corruptions={})
        return estimate.memory_of(params, classifier, subject.dataset.subset(torch.arange(40)))

    assert memory(128) == memory(40)
    assert memory(40) == estimate._PROGRAM + max(512 * 4 * (pixels + 1400), 40 * 4 * (7 * pixels + 2100))


def test_results_that_do_not_fit_the_disk_are_refused_with_the_key_to_change(subject, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate, "_FEW", 5)
    params = _params()
    needed = estimate.total(estimate.sizes_of(params, subject.dataset, None))
    free = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    refused, _ = estimate.no_room(params, subject.dataset, None)
    assert refused.startswith("storage.inputs: all: the results need ")
    assert "storage: {inputs: 5} needs " in refused
    assert "\n" not in refused
    free.free = needed + 1
    refused, tight = estimate.no_room(params, subject.dataset, None)
    assert refused == ""
    assert "DVC's cache" in tight
    free.free = 2 * needed + 1
    assert estimate.no_room(params, subject.dataset, None) == ("", "")


def test_a_python_predict_is_not_asked_to_tell_what_it_needs(subject):
    from dataclasses import replace

    from windtunnel.boundary.models.backends import PredictFunction
    from windtunnel.core.contracts import Capability

    module = PredictFunction(lambda batch: batch.reshape(len(batch), -1)[:, :10])
    classifier = replace(subject.classifier, module=module, capabilities=frozenset({Capability.FORWARD}))
    assert estimate.memory_of(_params(), classifier, subject.dataset) > 0
    skipped = [one.skipped for one in estimate.estimates(_params(), classifier, subject.dataset, None, 1)]
    assert skipped == ["a Python predict is not asked: every query counts"] * 4
    assert module.queries_asked == 0


def test_one_batch_of_each_entry_is_run_and_told_for_all_samples(subject, monkeypatch):
    asked: list[int] = []
    result_of = estimate.result_of
    monkeypatch.setattr(
        estimate, "result_of", lambda family, task: asked.append(len(task.subject.dataset)) or result_of(family, task)
    )
    found = {one.name: one for one in estimate.estimates(_params(), subject.classifier, subject.dataset, None, 2)}
    assert list(found) == ["attacks.fgsm", "sweeps.sweep", "verification.crown", "corruptions.suite"]
    assert asked == [3, 20, 3, 20, 60, 60]  # where there are several batches, also an eighth of one
    fgsm = found["attacks.fgsm"]
    assert (fgsm.samples, fgsm.batch) == (60, 20)
    assert fgsm.seconds == pytest.approx(fgsm.measured * 3 / 2)  # three batches over two workers
    assert found["corruptions.suite"].seconds == pytest.approx(
        found["corruptions.suite"].measured
    )  # several units, spread when it was timed
    for one in found.values():
        assert one.skipped == ""
        assert one.memory_bytes > 50 * 2**20
        assert one.disk_bytes > 0


def test_an_entry_that_cannot_be_tried_is_named_with_the_reason(subject):
    params = _params(latent={"manifold": {"samples": {"n": 10}, "generated": 10}})
    found = {one.name: one for one in estimate.estimates(params, subject.classifier, subject.dataset, None, 1)}
    assert found["latent.manifold"].skipped == "its generative models are made by the run"
    assert found["latent.manifold"].seconds == 0


def _tried(monkeypatch, seconds, taken=1, codes=()):
    """Trials that take `seconds` of their samples, and so many bytes."""
    caveats = tuple(Caveat(code, "") for code in codes)

    def tried(params, family, name, entry, classifier, samples):
        result = SimpleNamespace(caveats=caveats)
        return estimate.MeasuredCost(seconds(len(samples)), taken, 0, result)

    monkeypatch.setattr(estimate, "tried", tried)


def _advice(subject, size=20):
    params = _params(attacks={"fgsm": {**PARAMS["attacks"]["fgsm"], "batch_size": size}})
    return next(estimate.estimates(params, subject.classifier, subject.dataset, None, 1)).advice


def test_a_batch_size_that_is_far_too_small_is_told(subject, monkeypatch):
    _tried(monkeypatch, lambda n: 30 + 0.1 * n)
    assert _advice(subject) == (
        "attacks.fgsm.batch_size: 20 takes about 96 s, and larger batches as little as 36 s; set a larger batch_size"
    )


def test_one_sample_at_a_time_is_held_against_eight(subject, monkeypatch):
    _tried(monkeypatch, lambda n: 1 + 0.1 * n)
    assert "batch_size: 1 takes about 66 s, and larger batches as little as 7 s" in _advice(subject, 1)
    _tried(monkeypatch, lambda n: 1.0 * n)
    assert _advice(subject, 1) == ""


@pytest.mark.parametrize("seconds", [lambda n: 1.5 * n, lambda n: 1.0 + 0.01 * n])
def test_one_that_saves_little_is_not(subject, monkeypatch, seconds):
    """Time grows with the samples alone; three batches take four seconds."""
    _tried(monkeypatch, seconds)
    assert _advice(subject) == ""


@pytest.mark.parametrize(("taken", "codes"), [(2**30 + 1, ()), (1, ("batch_halved",)), (1, ("smaller_batch",))])
def test_a_batch_that_does_not_fit_is_told(subject, monkeypatch, taken, codes):
    monkeypatch.setattr(estimate, "memory_of_a_worker", lambda device, workers: 2**30)
    _tried(monkeypatch, lambda n: 0.1 * n, taken, codes)
    assert _advice(subject).startswith("attacks.fgsm.batch_size: 20 takes ")
    assert "a worker has 1.07 GB: it does not fit" in _advice(subject)


@pytest.mark.parametrize(("seconds", "workers", "said"), [(300.0, 1, True), (10.0, 1, False), (300.0, 4, False)])
def test_a_long_run_on_one_processor_of_several_is_told_how_to_use_them(monkeypatch, seconds, workers, said):
    one = estimate.Estimate("attacks.pgd", 100, 10, seconds / 10, seconds, 2**20, 2**20)
    monkeypatch.setattr(estimate, "estimates", lambda *_: iter([one]))
    monkeypatch.setattr(estimate, "checks_cost", lambda *_: None)
    monkeypatch.setattr(compatibility, "usable_processors", lambda: 4)
    before = RoomAnswer(disk_bytes=1, memory_bytes=1, workers=workers, seconds=None, entries=[])
    console = Console(file=io.StringIO(), width=200)
    compatibility.print_estimate(None, None, None, None, console, before)
    assert ("WINDTUNNEL_EXECUTOR=processes:4" in console.file.getvalue()) is said


def test_each_worker_gets_an_equal_part_of_the_memory():
    whole = estimate.memory_of_a_worker(torch.device("cpu"), 1)
    assert estimate.memory_of_a_worker(torch.device("cpu"), 4) == whole // 4


def test_the_memory_limit_of_the_container_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(str(10 * 2**20))
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert estimate.memory_of_a_worker(torch.device("cpu"), 1) == 10 * 2**20


def test_the_sanity_checks_are_in_the_estimate(subject):
    def cost(params, seconds):
        found = [estimate.Estimate(f"{entry}.a", 10, 1, 1.0, seconds, 0, 0) for entry in ("attacks", "verification")]
        return estimate.checks_cost(params, subject.classifier, subject.dataset, found)

    params = _params()
    long, short = cost(params, 1000.0), cost(params, 0.0)
    assert long.witness * long.each == pytest.approx(200.0, rel=0.01)
    assert (short.witness, short.others) == (4000, 50 * len(subject.dataset) + 100 * 10)
    assert short.seconds > 0
    assert "at most 4,000 passes of the model for the witness (D15)" in str(short)
    stored = params.model_copy(update={"sanity": params.sanity.model_copy(update={"profile": "stored"})})
    assert cost(stored, 1000.0) is None
