"""Work on a few rows at a time gives what work on all of them gives."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.core import scratch
from windtunnel.records.storage import evenly

SHAPES = st.tuples(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4))


def _drawn(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@given(SHAPES, st.integers(1, 200), st.integers(0, 100))
def test_parts_are_all_rows_once_and_in_order_and_no_larger_than_asked_for(shape, values, seed):
    tensor = _drawn(shape, seed)
    parts = [tensor[part] for part in scratch.sample_parts(tensor, values)]
    assert torch.equal(torch.cat([*parts, tensor[:0]]), tensor)
    assert all(len(part) == 1 or part.numel() <= values for part in parts)


@given(SHAPES, st.integers(1, 200), st.integers(0, 100))
def test_what_is_measured_by_parts_is_what_is_measured_at_once(shape, values, seed):
    one, other = _drawn(shape, seed), _drawn(shape, seed + 1)

    def measure(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).abs().flatten(1).amax(1)

    if len(one):
        assert torch.equal(scratch.by_samples(measure, one, other, values=values), measure(one, other))
    holes = one.masked_fill(other > 0.9, torch.nan)
    assert torch.equal(scratch.finite_samples(holes), holes.flatten(1).isfinite().all(1))
    assert scratch.same_values(one, one.clone())
    assert scratch.same_values(one, other) == torch.equal(one, other)


@given(SHAPES, st.integers(0, 100))
def test_rows_taken_and_put_are_those_of_an_index(shape, seed):
    source = _drawn(shape, seed)
    rows = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[: len(source) // 2]
    assert torch.equal(scratch.samples_at(source, rows), source[rows])
    into, wanted = _drawn(shape, seed + 1), _drawn(shape, seed + 1)
    scratch.put_samples(into, rows, source, rows)
    wanted[rows] = source[rows]
    assert torch.equal(into, wanted)


@given(st.integers(1, 500), st.integers(1, 600))
def test_kept_samples_are_different_in_order_evenly_spaced_and_as_many_as_wanted(n, wanted):
    kept = evenly(n, wanted)
    assert len(kept) == min(n, wanted)
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert kept[0] == 0
    assert kept[-1] < n
    gaps = kept.diff()
    assert not len(gaps) or int(gaps.max() - gaps.min()) <= 1


def _file_behind(tensor: torch.Tensor) -> str:
    """What the system says of the memory in which a tensor lies."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= tensor.data_ptr() < high:
            return line
    raise AssertionError("no memory of this process")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux where a tensor lies")
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64, torch.bool])
def test_a_large_tensor_lies_in_a_file_that_has_no_name_and_holds_what_is_written(dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scratch, "LARGE", 1000)
    scratch.CACHE.mkdir(parents=True)
    values = (torch.arange(2000) % 2).to(dtype).view(20, 100)
    found = scratch.copy_of(values)
    assert str(tmp_path) in _file_behind(found)
    assert torch.equal(found, values)
    assert found.dtype is dtype
    assert list(scratch.CACHE.iterdir()) == []


def test_the_shape_of_all_samples_needs_the_memory_of_one():
    one = torch.rand(1, 3, 4)
    found = scratch.of_shape_for(1000, one)
    assert (found.shape, found.dtype, found.untyped_storage().nbytes()) == ((1000, 3, 4), torch.float32, 48)
    assert [scratch.of_shape_for(5, value) for value in (0.1, "crown", None)] == [0.1, "crown", None]
    assert scratch.of_shape_for(5, torch.zeros(2, 3)).shape == (2, 3)
