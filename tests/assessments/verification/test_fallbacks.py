"""What cannot be done as asked is done by less, and said so."""

import re
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from balls import budget, entry, first, subject_with
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.bound_propagation import bounder as bounding
from windtunnel.assessments.verification.bound_propagation import lirpa, memory
from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.preflight import preflight
from windtunnel.core import machine
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import IncompatibleError


def caveat(result, code):
    (found,) = [c for c in result.caveats if c.code == code]
    return found


@pytest.fixture
def pooled():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3, stride=1), nn.Flatten(), nn.Linear(64, 5))
    return subject_with(network, torch.rand(6, 1, 8, 8), 5)


def test_an_operator_that_crown_cannot_bound_is_left_to_intervals_and_recorded_per_sample(pooled):
    preflight("verification.v", entry("crown"), budget(0.001), pooled.classifier, pooled.dataset)
    result = assess("v", entry("crown"), budget(0.001), pooled)
    verified = result.data["verdicts"] == Verdict.VERIFIED
    assert verified.any()
    names = result.kwargs["decided_by_names"]
    assert {names[i] for i in result.data["decided_by"][verified]} == {"ibp"}
    texts = [c.text for c in result.caveats if c.code == "weaker_method"]
    assert ["crown-ibp was used instead of crown" in texts[0], "ibp was used instead of crown-ibp" in texts[1]] == [
        True
    ] * 2
    assert "stride" in texts[0]
    assert caveat_ids(result) == set(pooled.dataset.ids)


def caveat_ids(result):
    return {sample for c in result.caveats if c.code == "weaker_method" for sample in c.samples}


def test_an_operator_that_nothing_bounds_is_refused_before_anything_is_computed():
    subject = subject_with(
        nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.GELU(), nn.Linear(6, 3)), torch.rand(2, 1, 3, 3), 3
    )
    with pytest.raises(
        IncompatibleError, match=r"verification\.v: auto-LiRPA ibp has no bound for gelu \(2\) in test"
    ) as caught:
        preflight("verification.v", entry("crown"), budget(0.01), subject.classifier, subject.dataset)
    assert "\n" not in str(caught.value)


def out_of_memory_for(monkeypatch, is_too_much):
    real = lirpa.bound_batch

    def limited(classifier, inputs, targets, norm, epsilon, method, **options):
        if is_too_much(method, len(inputs)):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 TB")
        return real(classifier, inputs, targets, norm, epsilon, method, **options)

    monkeypatch.setattr(bounding, "bound_batch", limited)


def test_out_of_memory_halves_the_batch_and_changes_no_verdict(digits_subject, monkeypatch):
    subject = first(digits_subject, 30)
    before = assess("v", entry("crown"), budget(0.04), subject)
    out_of_memory_for(monkeypatch, lambda method, n: n > 6)
    after = assess("v", entry("crown"), budget(0.04), subject)
    assert torch.equal(before.data["verdicts"], after.data["verdicts"])
    assert not before.caveats
    assert re.match("crown was run on [456] samples at a time, not ", caveat(after, "smaller_batch").text)


def test_a_sample_too_large_for_a_method_goes_to_the_weaker_one(digits_subject, monkeypatch):
    subject = first(digits_subject, 5)
    out_of_memory_for(monkeypatch, lambda method, n: method == "crown")
    result = assess("v", entry("crown"), budget(0.01), subject)
    assert "crown-ibp was used instead of crown: out of memory" in caveat(result, "weaker_method").text
    assert result.metrics["decided_by"]["crown-ibp"] > 0


def test_a_sample_too_large_for_every_method_is_an_error_and_the_others_are_kept(digits_subject, monkeypatch):
    subject = first(digits_subject, 8)
    right = subject.clean_correct.nonzero().flatten()
    calls = iter([True] * 3 + [False] * 50)  # the first sample: crown, crown-ibp, ibp
    out_of_memory_for(monkeypatch, lambda method, n: n > 1 or next(calls))
    verdicts = assess("v", entry("crown"), budget(0.01), subject).data["verdicts"]
    assert verdicts[right[0]] == Verdict.ERROR
    assert (verdicts[right[1:]] == Verdict.VERIFIED).sum() > 3


def test_another_runtime_error_is_not_taken_for_want_of_memory(digits_subject, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(bounding, "bound_batch", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        assess("v", entry("crown"), budget(0.04), first(digits_subject, 2))


def test_the_batch_follows_the_network_and_never_the_memory_that_is_free(digits_subject, monkeypatch):
    subject = first(digits_subject, 9)
    sizes = []
    for free in (80_000_000_000, 800_000_000):
        monkeypatch.setattr(
            "windtunnel.assessments.verification.bound_propagation.memory.free_memory", lambda device, free=free: free
        )
        bounder = Bounder(subject, budget(0.01).norm, 4)
        sizes.append([len(part) for part, _, _ in bounder.bound("crown", torch.arange(9), torch.full((9,), 0.01))])
        assert not bounder.caveats()
    assert sizes == [[4, 4, 1]] * 2


def test_a_version_that_lacks_what_is_called_is_refused_by_name(monkeypatch):
    module = lirpa.load_lirpa()
    monkeypatch.setattr(lirpa, "_NEEDS", {"C", "time_machine"})
    lirpa.load_lirpa.cache_clear()
    with pytest.raises(IncompatibleError, match=rf"{module.__version__}: compute_bounds has no time_machine"):
        lirpa.load_lirpa()
    lirpa.load_lirpa.cache_clear()


def test_bounds_that_exclude_the_clean_sample_are_not_believed(digits_subject, monkeypatch):
    real = lirpa.bound_batch

    def shifted(classifier, inputs, targets, norm, epsilon, method, **options):
        found = real(classifier, inputs, targets, norm, epsilon, method, **options)
        return replace(found, margins=found.margins + 100) if method == "crown" else found

    monkeypatch.setattr(bounding, "bound_batch", shifted)
    result = assess("v", entry("crown"), budget(0.2), first(digits_subject, 12))
    assert result.metrics["verified_rate"] == 0
    assert "exclude the clean sample" in caveat(result, "weaker_method").text


def test_pooling_that_auto_lirpa_bounds_wrongly_is_bounded_as_the_convolution_that_it_is():
    torch.manual_seed(0)
    uncounted = nn.AvgPool2d(2, padding=1, count_include_pad=False)
    layers = (nn.AvgPool2d(3, stride=2), nn.AvgPool2d(2, padding=1), uncounted)
    for layer, width in zip(layers, (9, 16, 16), strict=True):
        network = nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), layer, nn.Flatten(), nn.Linear(4 * width, 5))
        subject = subject_with(network, torch.rand(2, 1, 8, 8), 5)
        result = assess("v", entry("crown"), budget(0.01), subject)
        assert not result.caveats
        noise = 0.01 * (2 * torch.rand(1000, 1, 8, 8) - 1).sign()
        for i in range(2):
            logits = subject.classifier.logits((subject.dataset.inputs[i] + noise).clamp(0, 1))
            assert (logits >= result.data["output_bounds"]["lower"][i] - 1e-5).all()
            assert (logits <= result.data["output_bounds"]["upper"][i] + 1e-5).all()


def test_a_search_that_memory_does_not_hold_gives_way_to_alpha_crown_and_says_so(digits_subject, monkeypatch):
    def too_much(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 TB")

    monkeypatch.setattr("windtunnel.assessments.verification.branch_and_bound.session.decide", too_much)
    result = assess("v", entry("branch-and-bound"), budget(0.01), first(digits_subject, 4))
    assert "alpha-crown was used instead of branch-and-bound: out of memory" in caveat(result, "weaker_method").text
    assert result.metrics["decided_by"]["alpha-crown"] > 0
    assert result.metrics["error_rate"] == 0


def test_a_search_is_bounded_in_memory_and_its_time_ends_inside_a_bound_too(digits_subject, monkeypatch):
    from windtunnel.assessments.verification.branch_and_bound import session
    from windtunnel.core.errors import OutOfTimeError

    limits = []

    @contextmanager
    def noted(size, device):
        limits.append(size)
        yield

    def endless(*_, **__):
        raise OutOfTimeError  # as the limit does between two operations

    monkeypatch.setattr("windtunnel.assessments.verification.branch_and_bound.session.memory_limit", noted)
    monkeypatch.setattr(session, "bound_network", endless)
    subject = first(digits_subject, 3)
    result = assess("v", entry("branch-and-bound", timeout=1000), budget(0.01), subject)
    assert len(limits) == int(subject.clean_correct.sum())
    assert min(limits) > 0
    assert (result.data["verdicts"] == Verdict.UNKNOWN).sum() == len(limits)


def test_what_the_system_has_read_of_files_counts_as_free_in_a_container(tmp_path, monkeypatch):
    """Mapped data and results fill the cache of files: counted as used, they would halve every batch of a large run."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("8000000000\n")
    (tmp_path / "memory.current").write_text("7900000000\n")
    (tmp_path / "memory.stat").write_text(
        "anon 900000000\nfile 7000000000\ninactive_file 6000000000\nactive_file 900000000\n"
    )
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**50))
    assert memory.free_memory(torch.device("cpu")) == 7_000_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory(torch.device("cpu")) == 2**50
