"""Corruptions: all nineteen, the library's own bytes, the same whatever runs beside them."""

import warnings
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from windtunnel.assessments.corruptions.corrupt import corrupt_image, shim_imagecorruptions
from windtunnel.assessments.corruptions.jobs import Job
from windtunnel.assessments.corruptions.jobs import run_job as run_any_job
from windtunnel.assessments.corruptions.preflight import preflight
from windtunnel.assessments.corruptions.rows import ALL, COMMON, DETERMINISTIC, SUITES
from windtunnel.assessments.corruptions.table import ROWS, corruptions_of
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import seeded
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget

BUDGET = Budget(epsilon=0.1)


def run_job(job):
    """Run (corruption, severity, images, seeds, upsample)."""
    name, severity, images, seeds, upsample = job
    entry = CorruptionEntry(algorithm=name, upsample=upsample)
    return run_any_job(Job(ROWS["imagecorruptions", name], severity, images, seeds, entry))


def picture(side=32, seed=0):
    """Blocks of random colours with some grain: blur, contrast, pixels and noise all change it."""
    generator = np.random.default_rng(seed)
    blocks = np.kron(generator.integers(20, 236, (4, 4, 3)), np.ones((side // 4, side // 4, 1), dtype=np.int64))
    return np.uint8(blocks + generator.integers(-20, 20, (side, side, 3)))


def test_there_are_nineteen_of_which_fifteen_are_common():
    assert len(ALL) == len(set(ALL)) == 19
    assert len(COMMON) == 15
    assert set(SUITES["validation"]) == set(ALL) - set(COMMON)


@pytest.mark.parametrize("name", ALL)
def test_every_corruption_runs_without_a_warning_and_its_randomness_is_what_the_registry_says(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, again, other = (corrupt_image(picture(), name, 3, seed) for seed in (1, 1, 2))
    assert one.shape == (32, 32, 3)
    assert one.dtype == np.uint8
    assert not np.array_equal(one, picture())
    assert np.array_equal(one, again)
    assert np.array_equal(one, other) == (name in DETERMINISTIC)


def libraries_own(image, name, severity, seed):
    """The library's bytes, without any code of ours but the shims, every generator it may draw from seeded."""
    shim_imagecorruptions()
    import imagecorruptions

    generator = np.random.default_rng(seed)  # what scikit-image's random_noise makes for itself, without a seed
    with warnings.catch_warnings(), seeded(seed), patch("numpy.random.default_rng", lambda *_: generator):
        warnings.simplefilter("ignore")
        return imagecorruptions.corrupt(image, severity, name)


@pytest.mark.parametrize("name", ALL)
def test_bytes_equal_the_librarys_when_it_is_seeded_the_same_way(name):
    for severity in (2, 5):
        assert np.array_equal(corrupt_image(picture(), name, severity, 7), libraries_own(picture(), name, severity, 7))


@pytest.mark.slow
@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", ["glass_blur", "zoom_blur", "motion_blur", "snow", "brightness", "saturate", "frost"])
def test_what_is_faster_than_the_library_has_its_bytes_at_every_severity_and_shape(name, severity):
    for image in (picture(64), np.ascontiguousarray(picture(128)[:, :45])):
        ours, theirs = corrupt_image(image, name, severity, 3), libraries_own(image, name, severity, 3)
        assert np.array_equal(ours, theirs)


def test_where_no_drop_falls_spatter_leaves_the_image_alone_where_the_library_blackens_it():
    dark = np.full((32, 32, 3), 90, dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [corrupt_image(dark, "spatter", 1, seed) for seed in range(60)]
    assert min(image.mean() for image in found) >= 85
    assert any(np.array_equal(image, dark) for image in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("side", [32, 64, 224])
def test_every_corruption_runs_on_colour_and_grey_at_every_severity_without_a_word(name, side, capfd):
    colour = picture(side)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for severity in range(1, 6):
            for image in (colour, colour[..., :1]):
                (found,) = run_job((name, severity, image[None], (severity,), None))
                assert found.shape == image.shape
                assert found.dtype == np.uint8
    assert capfd.readouterr() == ("", "")


def test_an_image_does_not_depend_on_what_runs_beside_it():
    images, seeds = np.stack([picture(seed=s) for s in range(4)]), (5, 6, 7, 8)
    whole = run_job(("snow", 3, images, seeds, None))
    alone = run_job(("snow", 3, images[2:3], seeds[2:3], None))
    assert np.array_equal(whole[2:3], alone)
    assert not np.array_equal(run_job(("snow", 3, images[2:3], (1,), None)), alone)


def test_the_global_stream_is_left_as_it_was_found():
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    run_job(("gaussian_noise", 3, picture()[None], (0,), None))
    assert np.random.rand() == expected  # noqa: NPY002


def test_grey_images_come_back_grey_and_small_ones_in_their_size():
    grey = picture(32)[:8, :8, :1][None]
    found = run_job(("gaussian_noise", 1, grey, (0,), 32))
    assert found.shape == (1, 8, 8, 1)
    assert found.dtype == np.uint8


def test_an_image_that_the_library_cannot_corrupt_names_the_corruption():
    with pytest.raises(UserError, match="fog at severity 2 failed"):
        run_job(("fog", 2, picture(16)[None], (0,), None))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (CorruptionEntry(algorithm="fgo"), "Did you mean 'fog'"),
        (CorruptionEntry(algorithm="fog", params={"x": 1}), "'x' is not a parameter of fog; there is none"),
        (CorruptionEntry(algorithm="fog"), "upsample: 32"),
        (CorruptionEntry(algorithm="fog", upsample=16), "at least 32"),
        (CorruptionEntry(algorithm="fog", upsample=32, budget={"epsilon": 0.1}), "no budget"),
        (CorruptionEntry(corruptions=["fog", "snwo"], upsample=32), "Did you mean 'snow'"),
    ],
)
def test_what_cannot_run_is_refused_with_the_remedy(digits_subject, entry, says):
    with pytest.raises(UserError, match=says):
        preflight("corruptions.c", entry, BUDGET, digits_subject.classifier, digits_subject.dataset)


def test_upsampling_what_is_large_enough_is_refused(digits_subject):
    data = replace(digits_subject.dataset, inputs=torch.rand(2, 3, 64, 64))
    entry = CorruptionEntry(algorithm="fog", upsample=32)
    with pytest.raises(UserError, match="would only lose detail"):
        preflight("corruptions.c", entry, BUDGET, digits_subject.classifier, data)


def test_two_and_four_channels_are_refused(digits_subject):
    for channels in (2, 4):
        data = replace(digits_subject.dataset, inputs=torch.rand(2, channels, 32, 32))
        with pytest.raises(UserError, match=f"{channels} channels"):
            preflight("corruptions.c", CorruptionEntry(algorithm="fog"), BUDGET, digits_subject.classifier, data)


@pytest.mark.parametrize("value", [-0.2, 1.5, 200.0, float("nan")])
def test_values_outside_0_to_1_are_refused(digits_subject, value):
    inputs = torch.rand(2, 3, 32, 32)
    inputs[1, 0, 0, 0] = value
    data = replace(digits_subject.dataset, inputs=inputs)
    with pytest.raises(UserError, match=r"scaled to \[0, 1\]"):
        preflight("corruptions.c", CorruptionEntry(algorithm="fog"), BUDGET, digits_subject.classifier, data)


def test_a_list_of_corruptions_and_families_is_a_suite_of_its_own():
    entry = CorruptionEntry(corruptions=["fog", "weather", "jpeg_compression"])
    assert entry.algorithm == "choice"
    assert tuple(corruptions_of(entry, "x")) == ("fog", "snow", "frost", "brightness", "spatter", "jpeg_compression")


@pytest.mark.parametrize("given", [{"algorithm": "fog", "corruptions": ["snow"]}, {"algorithm": "choice"}])
def test_a_list_and_another_algorithm_contradict_each_other(given):
    with pytest.raises(ValueError, match="corruptions"):
        CorruptionEntry(**given)


@pytest.mark.parametrize("severities", [(0,), (6,), (1, 1), ()])
def test_severities_are_1_to_5_once_each(severities):
    with pytest.raises(ValueError, match="severit"):
        CorruptionEntry(severities=severities)
