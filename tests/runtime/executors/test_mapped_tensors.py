"""What lies in a mapped file is not sent to a process of this machine, which maps it too."""

import sys

import pytest
import torch

from windtunnel.core.batches import batches_of
from windtunnel.records.artifacts import load_tensors, save_tensors
from windtunnel.runtime.batch_runner import run_batches
from windtunnel.runtime.executors.payload import mapped_location, pack
from windtunnel.runtime.placement import VARIABLE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux where a tensor lies")


@pytest.fixture
def inputs(tmp_path):
    torch.manual_seed(0)
    save_tensors({"few": torch.arange(3), "inputs": torch.rand(500, 1, 28, 28)}, tmp_path / "data.pt")
    return load_tensors(tmp_path / "data.pt")["inputs"]


def test_a_mapped_tensor_is_told_by_its_place_and_any_other_is_sent(inputs):
    own = inputs.clone()
    payload = pack(lambda _: inputs, for_this_machine=True)
    assert len(payload.content) < 10_000
    assert torch.equal(payload.unpack()(None), own)
    assert torch.equal(pack(lambda _: inputs[100:], for_this_machine=True).unpack()(None), own[100:])
    for sent in (pack(lambda _: own, for_this_machine=True), pack(lambda _: inputs)):
        assert len(sent.content) > own.numel() * 4
        assert torch.equal(sent.unpack()(None), own)


def test_what_is_in_no_file_that_others_can_open_has_no_place(inputs, tmp_path):
    assert mapped_location(inputs)[0] == str(tmp_path / "data.pt")
    assert mapped_location(inputs.clone()) is None
    assert mapped_location(inputs[:, :, ::2]) is None  # not in one run of bytes
    (tmp_path / "data.pt").unlink()
    assert mapped_location(inputs) is None
    save_tensors({"inputs": torch.zeros(500, 1, 28, 28)}, tmp_path / "data.pt")  # another file of that name
    assert mapped_location(inputs) is None


def test_processes_give_what_this_one_gives_of_a_mapped_tensor(inputs, monkeypatch):
    batches = batches_of(torch.arange(500), 100, 0, "it")

    def work(batch):
        return {"x": inputs[batch.indices] * 2}

    here = run_batches(batches, work, name="it")
    monkeypatch.setenv(VARIABLE, "processes:2")
    assert torch.equal(run_batches(batches, work, name="it")["x"], here["x"])
