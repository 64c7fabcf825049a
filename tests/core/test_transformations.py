"""Transformations: the conventions, the measure of a region, and the words for it."""

from __future__ import annotations

import copy
import pickle

import numpy
import pytest
import torch
from scipy.ndimage import gaussian_filter, shift
from torch.nn.functional import affine_grid, grid_sample

from windtunnel.core.contracts import Norm
from windtunnel.core.transformations import (
    Transformation,
    budget_text,
    epsilon_axis,
    parameter_words,
    transformation_of,
)
from windtunnel.core.transformed import parameter_distances, transform
from windtunnel.params.entry import Budget


def _region(text: str) -> Transformation:
    transformation = transformation_of(Norm(text))
    assert transformation is not None
    return transformation


def _dot(row: int, column: int) -> torch.Tensor:
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, row, column] = 1.0
    return image


def test_a_positive_angle_turns_counter_clockwise() -> None:
    turned = transform(_region("rotation=90"), _dot(2, 4), torch.tensor([[90.0]], dtype=torch.float64))
    assert torch.allclose(turned, _dot(0, 2), atol=1e-6)


def test_a_translation_moves_to_the_right_and_up() -> None:
    moved = transform(_region("translation=2"), _dot(2, 2), torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    assert torch.equal(moved, _dot(0, 3))


def test_a_scale_above_one_enlarges_about_the_middle() -> None:
    larger = transform(_region("scale=0.99"), _dot(2, 3), torch.tensor([[1.99]], dtype=torch.float64))
    assert larger[0, 0, 2].argmax() == 4


def test_one_interpolation_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 3, 7, 7, generator=generator, dtype=torch.float64)
    parameters = torch.tensor([[20.0, 1.2], [5, 0.8], [-30, 1.0]], dtype=torch.float64)
    angle = torch.deg2rad(parameters[:, 0])
    cos, sin = angle.cos() / parameters[:, 1], angle.sin() / parameters[:, 1]
    matrix = torch.stack([torch.stack([cos, -sin, 0 * cos], 1), torch.stack([sin, cos, 0 * cos], 1)], 1)
    expected = grid_sample(x, affine_grid(matrix, [3, 3, 7, 7], align_corners=True), align_corners=True)
    assert torch.allclose(transform(_region("rotation=90,scale=0.5"), x, parameters), expected, atol=1e-12)


@pytest.mark.parametrize(("border", "mode"), [("zeros", "constant"), ("edge", "nearest"), ("reflect", "mirror")])
def test_a_border_is_that_of_scipy(border: str, mode: str) -> None:
    image = torch.rand(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    region = Transformation.of({"translation": 30}, border)
    for right, up in ((0.3, -0.7), (3.5, 2.2), (-11.2, 17.6)):
        moved = transform(region, image[None, None], torch.tensor([[right, up]], dtype=torch.float64))[0, 0]
        pixels = (
            numpy.pad(image.numpy(), 2) if mode == "constant" else image.numpy()
        )  # else scipy cuts off at the outer centres
        expected = shift(pixels, (-up, right), order=1, mode=mode)
        expected = expected[2:-2, 2:-2] if mode == "constant" else expected
        assert torch.allclose(moved, torch.from_numpy(expected), atol=1e-12)


def test_a_line_of_one_pixel_is_its_own_mirror_image() -> None:
    image = torch.tensor([0.2, 0.8]).view(1, 1, 1, 2)
    moved = transform(_region("translation=3,border=reflect"), image, torch.tensor([[1.0, 3.0]], dtype=torch.float64))
    assert torch.allclose(moved.flatten(), torch.tensor([0.8, 0.2]))


def test_zeros_are_no_part_of_the_measure_and_other_borders_are() -> None:
    plain, reflected = {"rotation": 10, "scale": 0.1}, {"rotation": 10, "scale": 0.1, "border": "reflect"}
    assert Budget.model_validate({**plain, "border": "zeros"}) == Budget.model_validate(plain)
    budget = Budget.model_validate(reflected)
    assert budget.norm == "rotation=10.0,scale=0.1,border=reflect"
    assert Budget.model_validate(budget.model_dump(mode="json")) == budget
    region = _region(budget.norm)
    assert region.words().endswith("border reflect")
    assert region.block == reflected


def test_regions_of_other_borders_cover_only_what_moves_no_pixel() -> None:
    wide = _region("rotation=30,brightness=0.2,border=edge")
    assert wide.covers(_region("rotation=10,border=edge"), 1.0, 1.0)
    assert wide.covers(_region("brightness=0.1"), 1.0, 1.0)
    assert not wide.covers(_region("rotation=10"), 1.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "rotation=10",
        "rotation=10,border=reflect",
        "translation=2,gamma=0.2",
        "hue=90,saturation=0.5",
        "scale=0.1,shear=0.1",
        "patch=3",
        "blur=1",
    ],
)
def test_the_identity_changes_nothing(text: str) -> None:
    x, region = torch.rand(2, 3, 5, 5), _region(text)
    identity = torch.tensor(region.identity, dtype=torch.float64).expand(2, -1)
    assert torch.allclose(transform(region, x, identity), x, atol=1e-6)
    assert (parameter_distances(region, region.table(identity)) == 0).all()


def test_brightness_adds_and_contrast_multiplies_within_the_range() -> None:
    x = torch.tensor([0.0, 0.4, 0.9]).view(1, 1, 1, 3)
    values = transform(_region("brightness=0.5,contrast=0.5"), x, torch.tensor([[0.2, 1.5]], dtype=torch.float64))
    assert torch.allclose(values.flatten(), torch.tensor([0.2, 0.8, 1.0]))


def test_a_blur_is_that_of_scipy_far_from_the_border() -> None:
    image = torch.zeros(1, 1, 15, 17, dtype=torch.float64)
    image[0, 0, 7, 8] = 1.0
    blurred = transform(_region("blur=2"), image, torch.tensor([[1.2]], dtype=torch.float64))
    expected = gaussian_filter(image[0, 0].numpy(), 1.2, truncate=8)
    assert torch.allclose(blurred[0, 0], torch.from_numpy(expected), atol=1e-6)
    ones = torch.ones(1, 1, 4, 5, dtype=torch.float64)
    assert torch.allclose(transform(_region("blur=2"), ones, torch.tensor([[2.0]]).double()), ones)


def test_a_red_pixel_turns_towards_green() -> None:
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1)
    turned = transform(_region("hue=180"), red, torch.tensor([[120.0]], dtype=torch.float64))
    assert torch.allclose(turned.flatten(), torch.tensor([0.0, 1, 0]), atol=1e-6)


def test_a_region_is_one_measure_whatever_the_order_of_its_kinds() -> None:
    measure = Norm("brightness=0.1,rotation=10")
    assert measure is Norm("rotation=10.0,brightness=0.1")
    assert pickle.loads(pickle.dumps(measure)) is copy.deepcopy(measure) is measure
    assert measure not in set(Norm)
    assert budget_text(measure, 0.5).replace("\N{NO-BREAK SPACE}", " ") == "rotation ≤ 5°, brightness ≤ 0.05"


def test_the_distance_is_the_largest_change_in_half_ranges() -> None:
    table = {"rotation": torch.tensor([5.0, 0.0, -10.0]), "brightness": torch.tensor([-0.1, 0.02, 0.0])}
    assert torch.allclose(
        parameter_distances(_region("rotation=10,brightness=0.1"), table), torch.tensor([1.0, 0.2, 1.0])
    )
    assert parameter_distances(_region("rotation=10"), table).tolist() == [float("inf"), float("inf"), 1.0]


def test_a_region_covers_those_inside_it() -> None:
    wide, narrow = _region("rotation=30,brightness=0.1"), _region("rotation=10")
    assert wide.covers(narrow, 1.0, 1.0)
    assert not narrow.covers(wide, 1.0, 0.1)
    assert _region("patch=5").covers(_region("patch=3"), 1.0, 1.0)
    assert not _region("occlusion=5").covers(_region("occlusion=3"), 1.0, 1.0)


@pytest.mark.parametrize(("norm", "label", "factor"), [
    ("Linf", "epsilon (Linf)", 1.0), ("rotation=10", "rotation up to, in °", 10.0), ("gamma=0.3", "gamma up to", 0.3),
    ("translation=2,border=edge", "translation up to, in px", 2.0),
])  # fmt: skip
def test_an_axis_is_in_the_unit_of_its_only_parameter(norm: str, label: str, factor: float) -> None:
    assert epsilon_axis(norm) == (label, factor)
    assert epsilon_axis("rotation=10,gamma=0.3")[1] == 1.0


def test_parameters_are_named_with_their_units() -> None:
    assert parameter_words({"rotation": -7.25, "brightness": 0.05}) == "rotation -7.25°, brightness 0.05"


@pytest.mark.parametrize(("block", "reason"), [
    ({"rotation": 200}, "rotation: 200 is no range"),
    ({"brightness": 25}, "brightness: 25 is no range"),
    ({"patch": 2.5}, "whole number of pixels"),
    ({"patch": 3, "rotation": 5}, "only change"),
    ({"rotation": 5, "norm": "Linf"}, "keep one"),
    ({"rotation": 5, "border": "mirror"}, "border: 'mirror' is not known"), ({"brightness": 0.1, "border": "edge"}, "move pixels"),
    ({"norm": "Linf", "epsilon": 0.1, "border": "edge"}, "border: stands beside"), ({"patch": 3, "border": "edge"}, "move pixels"),
    ({"rotation": 5, "scale": 0.1, "shear": 0.1, "gamma": 0.1, "hue": 10}, "5 kinds of change"),
])  # fmt: skip
def test_a_region_that_cannot_be_is_refused(block: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Budget.model_validate(block)


def test_a_budget_of_ranges_is_written_and_read_as_the_same() -> None:
    budget = Budget.model_validate({"rotation": "10", "brightness": "8/255"})
    assert budget.epsilon == 1.0
    assert Budget.model_validate(budget.model_dump(mode="json")) == budget
