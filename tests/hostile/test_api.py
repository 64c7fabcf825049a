"""Every call of the Python API works, or is one line; what the caller gave is byte for byte what it was."""

import copy
import sys

import numpy as np
import pytest
import torch

import windtunnel as wt
from tests.hostile.api_table import MODEL, Case, X, Y, cases
from tests.hostile.harness import MEMORY, SECONDS, _forked
from tests.hostile.selection import selected
from tests.operations.test_arguments import KEY
from windtunnel.runtime import supervised

KINDS: dict[str, list[Case]] = {}  # what a name begins with: x, y, model, predict, words; or other functions
for case in cases():
    KINDS.setdefault(case.name.partition(":")[0] if ":" in case.name else "functions", []).append(case)
CASES = [case for kind, found in KINDS.items() for case in selected(found, kind, lambda case: case.name)]


def contents(value: object) -> object:
    """The bytes of an array-like; None for what has none."""
    if isinstance(value, torch.Tensor):
        dense = (
            not value.is_nested
            and value.layout is torch.strided
            and not value.is_quantized
            and value.device.type != "meta"
        )
        return (
            value.detach().resolve_neg().clone().float().numpy().tobytes() if dense and value.numel() < 10**6 else None
        )
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes < 10**6 and value.dtype != object else None
    return copy.deepcopy(value) if isinstance(value, list) and len(value) > 1 and isinstance(value[0], int) else None


def call(case: Case) -> object:
    change = case.make()
    if case.function == "call":
        return change["call"]()
    given = {"model": MODEL, "x": X, "y": Y, "budget": "Linf 0.1", **change}
    if case.function == "attack":
        given = {"algorithm": "fgsm", **given}
    before = {name: contents(value) for name, value in given.items()}
    try:
        return getattr(wt, case.function)(**given)
    finally:
        assert {name: contents(value) for name, value in given.items()} == before


def run(case: Case) -> None:
    torch.set_num_threads(1)
    # The tests' process is large, and shares its processors.
    supervised._TRIAL, supervised._FORKED_MEMORY = SECONDS, 2**62
    try:
        result = call(case)
    except wt.UserError as error:
        print(str(error), file=sys.stderr)
        sys.exit(2)
    if case.same:
        plain = call(Case("plain", dict))
        assert torch.equal(result.tensor("perturbed_inputs"), plain.tensor("perturbed_inputs"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_call_works_or_is_one_line(tmp_path, case: Case):
    ended = _forked(lambda: run(case), tmp_path, SECONDS, {})
    if not case.words:
        assert ended.code == 0, ended.err[-3000:]
        return
    assert ended.code == 2, (ended.code, ended.out[-500:], ended.err[-3000:])
    for word in case.words:
        assert word in ended.line
    assert not KEY.search(ended.line)
    assert len(ended.line) < 1000
    assert ended.memory < MEMORY


ELSEWHERE = """
import copy
from torch import nn

class FailsLater(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.calls = copy.deepcopy(model), 0

    def forward(self, x):
        self.calls += 1
        return {}["missing"] if self.calls > 3 else self.model(x)
"""


def test_code_of_the_callers_outside_the_repository_is_one_line(tmp_path, monkeypatch):
    """A module on PYTHONPATH lies neither in the project nor among the installed packages."""
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path / "project")
    from elsewhere import FailsLater  # type: ignore[import-not-found]

    with pytest.raises(wt.UserError, match=r"elsewhere\.py, line 12: KeyError: 'missing'"):
        wt.attack(FailsLater(MODEL), X, Y, "pgd", budget="Linf 0.1")
