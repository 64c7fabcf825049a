"""Mutated params: valid, or exit code 2 and one line. WINDTUNNEL_FUZZ=2000 is the long form of 60 cases.

And a round of each target of benchmarks/fuzz.py, which tries as many as one likes.
"""

import copy
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import TARGETS, Count, tried
from tests.hostile.harness import params, windtunnel, write_params
from windtunnel.core.errors import UserError

CASES = int(os.environ.get("WINDTUNNEL_FUZZ", "60"))
VALID = params(
    budgets={"tight": {"epsilon": "2/255"}},
    attacks={
        "fgsm": {"library": "torchattacks", "algorithm": "FGSM", "budget": {"epsilon": 0.1}, "samples": {"n": 5}},
        "pgd": {"library": "foolbox", "algorithm": "LinfPGD", "params": {"steps": 3}, "on": {"survivors_of": ["fgsm"]}},
    },
    queries={"evoba": {"algorithm": "EvoBA", "params": {"generation_size": 2, "generations": 2}}},
    sweeps={"s": {"epsilons": [0, 0.1]}, "r": {"epsilons": {"start": 0, "stop": 0.1, "steps": 3}}},
    verification={"crown": {"library": "auto-LiRPA", "algorithm": "crown", "radius": {"max": 0.1, "tolerance": 0.01}}},
    corruptions={"fog": {"algorithm": "fog", "upsample": 32, "severities": [1, 3]}},
    gate={"minimum": {"clean/accuracy": 0.5}},
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from([10**9, -(10**18), 2**63, 1e308, 0.1, -0.5]),
    st.sampled_from(["", "x", "8/255", "1e-3", "none", "../x", "a:b", "*", "${budgets.tight}", "é", "a\nb", "x" * 400, "true"]),
)  # fmt: skip
KEYS = st.text("abn_", min_size=1, max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=4,
)


def places(node: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


@st.composite
def mutated(draw) -> dict[str, object]:
    """A valid file with one value replaced, taken away, or beside one that does not belong there."""
    content = copy.deepcopy(VALID)
    path = draw(st.sampled_from(places(content)[1:]))
    node = content
    for key in path[:-1]:
        node = node[key]
    match draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace":
            node[path[-1]] = draw(VALUES)
        case "remove":
            del node[path[-1]]
        case _ if isinstance(node, dict):
            node[draw(st.text("abcdenopst_-. /", min_size=1, max_size=8))] = draw(VALUES)
        case _:
            node.append(draw(VALUES))
    return content


def ends_well(content: dict[str, object], command: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_params(Path(folder), content)
        ended = windtunnel(command, cwd=Path(folder))
    assert ended.code in (0, 2), ended.err[-2000:]
    # A value that is a map may hold several mistakes: a line each, and nothing else.
    lines = [line for line in ended.err.splitlines() if line.strip()]
    assert bool(lines) == (ended.code == 2), ended.err[-2000:]
    assert all(line.startswith(("windtunnel: ", "params.yaml: ", "attacks.")) and len(line) < 1500 for line in lines), (
        ended.err[-2000:]
    )


FUZZ = {
    "deadline": None, "derandomize": True, "database": None, "phases": [Phase.generate],
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=CASES, **FUZZ)
@given(mutated())
def test_mutated_params_are_valid_or_refused_in_one_line(content):
    ends_well(content, "params")


@pytest.mark.slow
@settings(max_examples=max(20, CASES // 4), **FUZZ)
@given(mutated())
def test_check_passes_mutated_params_or_refuses_them_in_one_line(content):
    ends_well(content, "check")


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=pytest.mark.slow if name in {"models", "results"} else ()) for name in TARGETS]
)
def test_damaged_inputs_of_a_kind_pass_or_are_refused_in_one_line(target):
    tried(target, 0, count := Count())
    assert not count.findings
    assert 0 < count.refused < count.tried


def test_a_traceback_and_the_end_of_a_process_are_findings(monkeypatch):
    def work(draw, count):
        os._exit(3)

    count = Count()
    count.of(lambda: [][1], "x")
    monkeypatch.setitem(TARGETS, "text", work)
    tried("text", 0, count)
    assert sorted(count.findings)[1] == "a process ended with 3"
    assert sorted(count.findings)[0].startswith("IndexError in test_fuzz.py")


def test_the_lines_of_a_message_are_bounded_whatever_it_repeats():
    lines = str(UserError("\n".join(["begin " + "x" * 10**6 + " end", *map(str, range(100))]))).splitlines()
    assert lines[0].startswith("begin xxx")
    assert lines[0].endswith("xxx end")
    assert len(lines[0]) <= 900
    assert lines[-1] == "and 81 lines more"
    assert str(UserError("a\nb")) == "a\nb"
