"""Corruptions: all nineteen, the library's own bytes, the same whatever runs beside them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from windtunnel.core.errors import UserError
from windtunnel.core.seeds import seeded
from windtunnel.corruptions.assess import NEVER, assess_suite
from windtunnel.corruptions.corrupt import Job, corrupt_image, run_job
from windtunnel.corruptions.preflight import preflight
from windtunnel.corruptions.shims import shim_imagecorruptions
from windtunnel.corruptions.table import ALL, COMMON, DETERMINISTIC, SUITES
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget

BUDGET = Budget(epsilon=0.1)


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


@pytest.mark.parametrize("name", sorted(set(ALL) - {"impulse_noise"}))
def test_bytes_equal_the_librarys_when_it_is_seeded_the_same_way(name):
    shim_imagecorruptions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import imagecorruptions

        with seeded(7):
            expected = np.uint8(imagecorruptions.corrupt(picture(), severity=2, corruption_name=name))
    assert np.array_equal(corrupt_image(picture(), name, 2, 7), expected)


def test_impulse_noise_is_as_dense_as_the_librarys():
    shim_imagecorruptions()
    import imagecorruptions

    grey = np.full((64, 64, 3), 128, dtype=np.uint8)
    ours, theirs = (
        np.mean(image != 128)
        for image in (corrupt_image(grey, "impulse_noise", 4, 0), imagecorruptions.corrupt(grey, 4, "impulse_noise"))
    )
    assert ours == pytest.approx(theirs, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("severity", [1, 5])
def test_every_corruption_runs_at_64_and_224_pixels(name, severity):
    for side in (64, 224):
        assert corrupt_image(picture(side), name, severity, 0).shape == (side, side, 3)


def test_an_image_does_not_depend_on_what_runs_beside_it():
    images, ids = np.stack([picture(seed=s) for s in range(4)]), ("a", "b", "c", "d")
    whole = run_job(Job("snow", 3, images, ids, 0, None))
    alone = run_job(Job("snow", 3, images[2:3], ids[2:3], 0, None))
    assert np.array_equal(whole[2:3], alone)
    assert not np.array_equal(run_job(Job("snow", 3, images[2:3], ids[2:3], 1, None)), alone)


def test_grey_images_come_back_grey_and_small_ones_in_their_size():
    grey = picture(32)[:8, :8, :1][None]
    found = run_job(Job("gaussian_noise", 1, grey, ("a",), 0, 32))
    assert found.shape == (1, 8, 8, 1)
    assert found.dtype == np.uint8


@pytest.fixture(scope="module")
def suite(digits_subject):
    few = digits_subject.subset(torch.arange(24))
    entry = CorruptionEntry(algorithm="noise", severities=(1, 5), upsample=32, workers=1)
    return few, entry, run_suite(entry, few)


def run_suite(entry, subject):
    """(suite, children)."""
    children = []
    return assess_suite("noise", entry, subject, children.append), children


def test_a_suite_has_a_child_per_corruption_and_severity_and_agrees_with_them(suite):
    subject, _, (whole, children) = suite
    assert [c.name for c in children] == [f"{n}-{s}" for n in SUITES["noise"] for s in (1, 5)]
    predictions = torch.stack([c.data["perturbed_predictions"] for c in children])
    assert torch.equal(whole.data["corruption_predictions"], predictions)
    accuracy = (predictions == subject.dataset.targets).double().mean()
    assert whole.metrics["corrupted_accuracy"] == pytest.approx(float(accuracy))
    for child in children:
        hits = (child.data["perturbed_predictions"] == subject.dataset.targets).double().mean()
        assert child.metrics["corrupted_accuracy"] == float(hits)
        assert child.metrics["accuracy_ci_low"] <= float(hits) <= child.metrics["accuracy_ci_high"]


def test_the_minimal_severity_is_the_mildest_that_breaks(suite):
    subject, _, (whole, _) = suite
    wrong = whole.data["corruption_predictions"] != subject.dataset.targets
    severities = torch.tensor([1, 5] * 4)
    for i in range(24):
        broken = severities[wrong[:, i]]
        assert whole.data["minimal_severity"][i] == (broken.min() if len(broken) else NEVER)


def test_processes_give_the_same_bytes_as_one(suite):
    subject, entry, (whole, _) = suite
    again, _ = run_suite(entry.model_copy(update={"workers": 2}), subject)
    assert torch.equal(again.data["perturbed_inputs"], whole.data["perturbed_inputs"])


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (CorruptionEntry(algorithm="fgo"), "Did you mean 'fog'"),
        (CorruptionEntry(algorithm="fog"), "upsample: 32"),
        (CorruptionEntry(algorithm="fog", upsample=16), "at least 32"),
        (CorruptionEntry(algorithm="fog", upsample=32, budget={"epsilon": 0.1}), "no budget"),
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


@pytest.mark.parametrize("severities", [(0,), (6,), (1, 1), ()])
def test_severities_are_1_to_5_once_each(severities):
    with pytest.raises(ValueError, match="severit"):
        CorruptionEntry(severities=severities)
