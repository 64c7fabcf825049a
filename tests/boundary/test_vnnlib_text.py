"""What is read of a VNN-LIB file, of both versions, and what is refused."""

import random
import re

import pytest
import torch

from windtunnel.boundary.vnnlib_text import counter_example, read_specifications, robustness
from windtunnel.core.errors import UserError

VERSION_1 = """; a comment (with brackets)
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(declare-const Y_2 Real)
(assert (<= X_0 1))
(assert (>= X_0 -2.5e-05))
(assert (<= X_1 .5))
(assert (>= X_1 0.25))
(assert (or (and (>= Y_0 Y_2)) (and (>= Y_1 Y_2))))
"""
VERSION_2 = """(vnnlib-version <2.0>)
(declare-network N (declare-input X float32 [1,2]) (declare-output Y float32 [1,3]))
(assert (<= X[0,0] 1.0))
(assert (>= X[0,0] -2.5e-05))
(assert (<= X[0,1] 0.5))
(assert (>= X[0,1] 0.25))
(assert (or (>= Y[0,0] Y[0,2]) (>= Y[0,1] Y[0,2])))
"""


def read(tmp_path, text):
    path = tmp_path / "spec.vnnlib"
    path.write_text(text)
    return read_specifications(path)


@pytest.mark.parametrize("text", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
def test_both_versions_are_read_as_one_box_and_the_margins(tmp_path, text):
    (found,) = read(tmp_path, text)
    assert found.low.tolist() == [-2.5e-05, 0.25]
    assert found.high.tolist() == [1.0, 0.5]
    assert found.rows.tolist() == [[-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]]
    assert found.limits.tolist() == [0.0, 0.0]
    assert found.holds_at(torch.tensor([1.0, 3.0, 2.0]))
    assert not found.holds_at(torch.tensor([1.0, 1.0, 2.0]))


def test_what_smt_lib_adds_without_effect_is_read(tmp_path):
    plain = VERSION_1
    written = plain.replace("declare-const X_0 Real", "declare-fun X_0 () Real").replace("(assert (", "( assert\n(  ")
    head = '(set-logic QF_LRA)\n(set-info :source "a paper (2024)")\n'
    specification = read(tmp_path, f"{head}{written}\n(check-sat)\n(exit)\n")
    for ours, theirs in zip(read(tmp_path, plain), specification, strict=True):
        assert torch.equal(ours.low, theirs.low)
        assert torch.equal(ours.rows, theirs.rows)


@pytest.mark.parametrize(
    ("asserted", "holds"),
    [
        ("(assert (and (>= Y_0 Y_1)))(assert (and (>= Y_0 Y_2) (<= Y_2 1)))", lambda a, b, c: a >= b and a >= c <= 1),
        ("(assert (= Y_0 1))(assert (== Y_1 1))", lambda a, b, c: a == b == 1),
        ("(assert (= (+ Y_0 Y_1) 1 Y_2))", lambda a, b, c: a + b == 1 == c),
        ("(assert (<= 0\n Y_0 (+ Y_1 (* 2 Y_2)) 2.0))", lambda a, b, c: 0 <= a <= b + 2 * c <= 2),
    ],
)
def test_conjunctions_in_several_assertions_hold_together(tmp_path, asserted, holds):
    """vnnlib alone takes the second of two conjunctions for an alternative to the first; equalities become conjunctions."""
    box = "(assert (and (<= X_0 1) (>= X_0 -1)))\n(assert (>= 0.5 X_1 0.25))\n"
    (specification,) = read(tmp_path, VERSION_1[: VERSION_1.index("(assert")] + box + asserted)
    assert (specification.low.tolist(), specification.high.tolist()) == ([-1, 0.25], [1, 0.5])
    for y in torch.cartesian_prod(*[torch.tensor([-1.0, 0.5, 1.0, 2.0])] * 3):
        assert specification.holds_at(y) == holds(*y.tolist())


def test_what_is_written_is_read_back_to_the_last_digit(tmp_path):
    low = torch.tensor([0.1, 1 / 3, 1e-17], dtype=torch.float64)
    high = low + torch.tensor([0.0, 0.1, 2e-9], dtype=torch.float64)
    (found,) = read(tmp_path, "\n".join(robustness(low, high, 1, 3, "a title")))
    assert torch.equal(found.low, low)
    assert torch.equal(found.high, high)
    assert found.rows.tolist() == [[-1.0, 1.0, 0.0], [0.0, 1.0, -1.0]]


def test_a_counter_example_is_written_in_the_form_of_the_competition():
    text = counter_example(torch.tensor([0.5, 0.25]), torch.tensor([2.0]))
    assert text == "((X_0 0.5)\n(X_1 0.25)\n(Y_0 2.0))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(assert", "not VNN-LIB"),
        (VERSION_1.replace("(assert (<= X_1 .5))\n", ""), "input 1 has no bound"),
        (VERSION_1 + "(assert (== (+ Y_0 (* 2 (- (+ Y_1 Y_2)))) 1.0))", "== of deeper sums"),
        (VERSION_1.replace("X_", "X_0_"), "declares 'X_0_0'; version 1 has X_0, X_1"),
        (VERSION_1 + "(assert (<= (/ Y_0 2) 1.0))", "uses /; boxes and linear"),
        (VERSION_1 + "(assert (!= Y_0 Y_1))", "or for !="),
        (VERSION_1 + "(assert (or" + "(<= Y_0 1)" * 501 + "))", "more than 1000 terms"),
    ],
)
def test_what_is_not_the_robustness_form_is_refused_in_one_line(tmp_path, text, words):
    with pytest.raises(UserError, match=words) as raised:
        read(tmp_path, text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("seed", range(20))
def test_any_nesting_of_conjunctions_and_disjunctions_is_read(tmp_path, seed):
    generator = random.Random(seed)

    def build(depth):
        """Return (text, function of the outputs) of a random formula."""
        if depth == 0 or generator.random() < 0.25:
            i, j, limit = generator.randrange(3), generator.randrange(3), generator.randint(-2, 2)
            if i == j:
                return f"(<= Y_{i} {limit})", lambda y: y[i] <= limit
            return f"(>= Y_{i} Y_{j})", lambda y: y[i] >= y[j]
        word, combine = generator.choice([("and", all), ("or", any)])
        parts = [build(depth - 1) for _ in range(generator.randint(2, 3))]
        return f"({word} {' '.join(text for text, _ in parts)})", lambda y: combine(holds(y) for _, holds in parts)

    text, holds = build(3)
    (asked,) = read(tmp_path, VERSION_1[: VERSION_1.index("(assert (or")] + f"(assert {text})")
    for _ in range(50):
        y = torch.tensor([generator.uniform(-3, 3) for _ in range(3)])
        assert asked.holds_at(y) == holds(y.double().tolist())


BOXES = "(or (and (>= X_0 0.1) (<= X_0 0.2)) (and (>= X_0 0.4) (<= X_0 0.5)))"
EITHER, OTHER = "(or (>= Y_1 Y_0) (and (>= Y_2 Y_0)))", "(or (<= Y_1 1) (<= Y_2 -2e0))"


@pytest.mark.parametrize(
    "asserted",
    [
        (BOXES, EITHER, OTHER, "(= X_1 0.25)"),
        (EITHER, f"(and (>= X_1 0.25) (<= X_1 0.25) {BOXES})", OTHER),
        (f"(and {BOXES} (and {EITHER} {OTHER} (== X_1 0.25)))",),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_choices_in_several_assertions_hold_together(tmp_path, asserted, version):
    """vnnlib alone takes the second of two disjunctions for more alternatives of the first."""
    head = VERSION_1[: VERSION_1.index("(assert")]
    text = head + "\n".join(f"(assert {formula})" for formula in asserted)
    if version == 2:
        text = re.sub(r"\b([XY])_(\d)", r"\1[0,\2]", text[len(head) :])
        text = (
            "(vnnlib-version <2.0>)\n(declare-network N\n(declare-input X float32 [1,2])\n"
            f"(declare-output Y float32 [1,3]))\n{text}"
        )
    boxes = read(tmp_path, text)
    ends = sorted((asked.low.tolist(), asked.high.tolist()) for asked in boxes)
    assert ends == [([0.1, 0.25], [0.2, 0.25]), ([0.4, 0.25], [0.5, 0.25])]
    for y in 4 * torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) - 2:
        a, b, c = y.double().tolist()
        expected = (b >= a or c >= a) and (b <= 1 or c <= -2)
        assert [asked.holds_at(y) for asked in boxes] == [expected, expected]
