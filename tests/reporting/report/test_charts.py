"""The drawings: what stands where, that shares add up, and that nothing leaves the canvas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.assessments.figures.plots import Axes, Bar, Series, bars, binned, columns, lines, matrix, ticks
from windtunnel.assessments.figures.scene import (
    ATTACK_CURVES,
    PALETTE,
    Dot,
    Label,
    Line,
    Rect,
    contrast,
    curve_colour,
    text_width,
)
from windtunnel.core.sample_states import SampleState
from windtunnel.evaluation.summary.sandwich_figure import ROLES, BudgetBar, sandwich
from windtunnel.records.metadata import Rate

share = st.floats(0, 1)


def inside(scene):
    for mark in scene.marks:
        if isinstance(mark, Rect):
            assert -0.01 <= mark.x <= mark.x + mark.width <= scene.width + 0.01
            assert -0.01 <= mark.y <= mark.y + mark.height <= scene.height + 0.01
        elif isinstance(mark, Line):
            assert all(-4 <= x <= scene.width + 4 and -4 <= y <= scene.height + 4 for x, y in mark.points)
        elif isinstance(mark, Dot | Label):
            assert 0 <= mark.x <= scene.width
            assert 0 <= mark.y <= scene.height


@given(st.lists(st.integers(0, 100), min_size=5, max_size=5).filter(any), share, share)
def test_the_states_of_a_budget_are_drawn_to_scale_in_five_colours(counts, low, high):
    shares = {state: count / sum(counts) for state, count in zip(ROLES, counts, strict=True)}
    layer = BudgetBar("Linf ≤ 0.1", shares, Rate(low, min(low, high), max(low, high)))
    scene = sandwich([layer])
    inside(scene)
    drawn = {m.colour: m.width for m in scene.marks if isinstance(m, Rect) and m.height > 10}
    total = sum(drawn.values())
    for state, part in shares.items():
        if part > 0.001:
            assert drawn[ROLES[state]] / total == pytest.approx(part, abs=5e-3)
    legend = {m.colour for m in scene.marks if isinstance(m, Rect) and m.height < 10}
    assert legend == {*ROLES.values()}
    assert len(legend) == len(SampleState) == 5


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_ticks_are_few_round_and_inside(low, width):
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 11
    assert all(low - 1e-6 * width <= t <= low + width * (1 + 1e-6) for t in found)


def test_a_value_stands_where_the_axes_say():
    axes = Axes(10, 20, 110, 220, (0, 1), (0, 2))
    assert axes.at(0, 0) == (10, 220)
    assert axes.at(1, 2) == (110, 20)
    assert axes.at(0.5, 1) == (60, 120)


def test_every_kind_of_chart_stays_on_its_canvas_and_speaks_for_itself():
    scenes = [
        bars([Bar("a" * 90, 1.0, "clean", (0.9, 1.0)), Bar("b", 0.0, "broken")], "accuracy", "words", (0.97, "clean 97.0%")),
        lines([Series("s", "broken", ((0, 1), (0.1, 0.4)), ((0.9, 1.0), (0.3, 0.5)))], "epsilon", "accuracy", "words"),
        lines([Series("one point", "broken", ((0.1, 0.4),), ((0.3, 0.5),), line=False)], "epsilon", "accuracy", "words"),
        columns([0, 3, 0], (0, 0.3), "epsilon", "words", extra=("never", 2, "unknown")),
        columns([0, 0], (0, 1), "epsilon", "words"),
        matrix([[0, 0], [0, 0]], ["x", "y"], ["1", "2"], "severity", "corruption", "words", ("#ffffff", "#000000"), str),
    ]  # fmt: skip
    for scene in scenes:
        inside(scene)
        assert scene.alt == "words"
        assert all(m.colour in PALETTE or m.colour.startswith("#") for m in scene.marks)


def test_hover_text_holds_the_value_and_its_interval():
    scene = bars([Bar("pgd", 0.5, "broken", (0.4, 0.6))], "accuracy", "words")
    assert "pgd: 50.0% [40.0%, 60.0%]" in [m.tip for m in scene.marks if isinstance(m, Rect)]


@given(
    st.integers(1, 500), st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(2, 25), st.integers(-3, 2)
)
def test_bins_follow_the_grid_of_the_values(step, places, most, power):
    """Counts of queries, changed values and epsilons of a sweep: each bin holds the same number of possible values."""
    values = [(7 + place * step) * 10.0**power for place in places]
    counts, (low, high) = binned(values, most)
    assert sum(counts) == len(values)
    assert len(counts) <= most
    width = (high - low) / len(counts)
    grid = math.gcd(*(place - min(places) for place in places)) * step or width / 10.0**power
    assert round(width / 10.0**power / grid, 3) % 1 == 0
    assert all(low < value < high for value in values)
    assert counts[0] > 0
    assert counts[-1] > 0


def test_no_two_curves_of_a_chart_share_a_colour():
    colours = [curve_colour(ATTACK_CURVES, i) for i in range(40)]
    assert len(set(colours)) == 40
    assert all(contrast(c, PALETTE["paper"][k]) >= 3 for c in colours[len(ATTACK_CURVES) :] for k in (0, 1))


def test_a_long_label_of_an_axis_stays_on_the_page():
    label = "top-1 accuracy per class at the median epsilon, 0.1, 95 % intervals"
    scene = bars([Bar("class 0", 0.5, "broken")], label, "alt", width=312)
    mark = next(m for m in scene.marks if isinstance(m, Label) and m.text == label)
    half = text_width(label, mark.size) / 2
    assert mark.x - half >= 0
    assert mark.x + half <= scene.width
