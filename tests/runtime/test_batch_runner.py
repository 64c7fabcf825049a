import pytest
import torch

from windtunnel.core.batches import batches_of
from windtunnel.runtime.batch_runner import Checkpoint, each_batch, run_batches


def work(batch):
    generator = torch.Generator().manual_seed(batch.seed)
    return {"value": batch.indices.double() + torch.rand(len(batch.indices), generator=generator, dtype=torch.float64)}


def test_a_killed_run_continues_and_gives_the_same_result(tmp_path):
    batches = batches_of(torch.arange(10), 3, run_seed=7, name="pgd")
    whole = run_batches(batches, work, name="pgd")
    done = []

    def dies_at_the_third(batch):
        if batch.number == 2:
            raise KeyboardInterrupt
        return work(batch)

    def counts(batch):
        done.append(batch.number)
        return work(batch)

    with pytest.raises(KeyboardInterrupt):
        run_batches(
            batches, dies_at_the_third, name="pgd", checkpoint=Checkpoint("pgd", "resolved", {"eps": 1}, tmp_path)
        )
    again = run_batches(batches, counts, name="pgd", checkpoint=Checkpoint("pgd", "resolved", {"eps": 1}, tmp_path))
    assert done == [2, 3]
    assert torch.equal(again["value"], whole["value"])


def test_a_run_that_is_killed_hard_loses_only_what_was_quick(tmp_path, monkeypatch):
    batches = batches_of(torch.arange(9), 3, run_seed=7, name="pgd")
    clock = iter([0.0, 0.4, 0.8, 1.2, 1.2])
    monkeypatch.setattr("windtunnel.runtime.batch_runner.time.monotonic", lambda: next(clock))
    checkpoint = Checkpoint("pgd", "resolved", {}, tmp_path)
    parts = each_batch(batches, work, name="pgd", checkpoint=checkpoint)
    next(parts), next(parts)
    assert checkpoint.get(0) is checkpoint.get(1) is None
    next(parts)
    assert all(torch.equal(checkpoint.get(b.number)["value"], work(b)["value"]) for b in batches)


def test_another_identity_never_sees_the_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.runtime.batch_runner.WORTH_KEEPING", -1.0)
    batches = batches_of(torch.arange(4), 2, 0, "pgd")
    run_batches(batches, work, name="pgd", checkpoint=Checkpoint("pgd", "resolved", {"eps": 1}, tmp_path))
    assert Checkpoint("pgd", "resolved", {"eps": 2}, tmp_path).get(0) is None
    assert Checkpoint("pgd", "resolved", {"eps": 1}, tmp_path).get(0) is not None


def test_what_is_resolved_otherwise_never_sees_the_shards_and_what_is_not_resolved_keeps_none(tmp_path):
    batch = work(batches_of(torch.arange(2), 2, 0, "pgd")[0])
    for resolved in ("of this code", ""):
        Checkpoint("pgd", resolved, {}, tmp_path).put(0, batch)
    assert Checkpoint("pgd", "of this code", {}, tmp_path).get(0) is not None
    assert Checkpoint("pgd", "of other code", {}, tmp_path).get(0) is None
    assert Checkpoint("pgd", "", {}, tmp_path).get(0) is None


def test_a_batch_does_not_depend_on_which_others_run():
    batches = batches_of(torch.arange(10), 3, 0, "pgd")
    alone = work(batches[2])["value"]
    assert torch.equal(run_batches(batches, work, name="pgd")["value"][6:9], alone)


def test_no_samples_give_no_rows():
    assert run_batches(batches_of(torch.arange(0), 3, 0, "pgd"), work, name="pgd") == {}
