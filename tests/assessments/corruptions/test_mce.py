"""mCE and relative mCE: the definitions, published numbers, and references that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.corruptions.metrics import SuiteData, mce_metrics
from windtunnel.assessments.corruptions.reference import ALEXNET, Reference, check_reference, reference_of
from windtunnel.assessments.corruptions.rows import COMMON
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.statistics import bootstrap_means, percentile_interval
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.records.artifacts import write_artifacts

PAIRS = [(name, severity) for name in COMMON for severity in range(1, 6)]
# Means over the severities, github.com/hendrycks/robustness (shared docs/metrics.md).
PUBLISHED = {
    "gaussian_noise": 0.886428, "shot_noise": 0.894468, "impulse_noise": 0.922640, "defocus_blur": 0.819880,
    "glass_blur": 0.826268, "motion_blur": 0.785948, "zoom_blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic_transform": 0.646056, "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}  # fmt: skip


def imagenet_like(n=2, classes=1000, side=224, channels=3):
    names = tuple(map(str, range(classes)))
    return Dataset(torch.zeros(n, channels, side, side), torch.zeros(n, dtype=torch.int64), names[:n], names)


def entry(**given):
    return CorruptionEntry(**{"severities": (1, 2, 3, 4, 5), "reference": ALEXNET, **given})


def suite_of(wrong, clean_wrong, pairs):
    """A suite whose errors are these: wrong bool (P, N), clean_wrong bool (N,)."""
    n = wrong.shape[1]
    zeros = torch.zeros(n, dtype=torch.int64)
    return SuiteData(pairs, wrong.long(), clean_wrong.long(), zeros, None, zeros, zeros)


def test_alexnets_errors_average_to_the_published_normalisers():
    reference = reference_of("c", entry(), PAIRS, imagenet_like())
    assert reference is not None
    means = {c: np.mean([reference.wrong[i, 0] for i, p in enumerate(PAIRS) if p[0] == c]) for c in COMMON}
    assert means == pytest.approx(PUBLISHED, abs=1e-6)
    assert 1 - reference.wrong[-1, 0] == pytest.approx(0.56522)


def test_a_model_with_the_references_errors_has_mce_1():
    generator = torch.Generator().manual_seed(0)
    wrong, clean = torch.rand(75, 40, generator=generator) < 0.7, torch.rand(40, generator=generator) < 0.3
    reference = Reference("same", torch.cat([wrong, clean[None]]).double().numpy())
    metrics = mce_metrics(suite_of(wrong, clean, PAIRS), reference, 0.95)
    for key in ("mce", "mce_ci_low", "mce_ci_high", "relative_mce"):
        assert metrics[key] == pytest.approx(1)


def test_the_mce_of_resnet_50_is_the_published_76_7():
    # CEs of ResNet-50 (Hendrycks, Dietterich 2019, table 1), in percent and rounded: its error is CE times AlexNet's, so the
    # published mean of the unrounded ones must come back.
    published = [80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77]
    order = ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
             "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"]  # fmt: skip
    ce = dict(zip(order, (c / 100 for c in published), strict=True))
    n = 20_000
    rates = [ce[c] * PUBLISHED[c] for c, _ in PAIRS]
    wrong = torch.arange(n)[None] < (torch.tensor(rates) * n).round()[:, None]
    reference = reference_of("c", entry(), PAIRS, imagenet_like())
    metrics = mce_metrics(suite_of(wrong, torch.arange(n) < 0.2387 * n, PAIRS), reference, 0.95)
    assert metrics["mce"] == pytest.approx(0.767, abs=0.002)
    assert metrics["corruption_errors"] == pytest.approx(ce, abs=1e-3)
    assert metrics["mce_ci_low"] < metrics["mce"] < metrics["mce_ci_high"]


def test_relative_mce_takes_the_clean_error_off_first():
    pairs = [("fog", 1), ("fog", 5), ("snow", 1), ("snow", 5)]
    ours = torch.arange(10)[None] < torch.tensor([2, 6, 3, 9])[:, None]
    theirs = torch.arange(10)[None] < torch.tensor([4, 8, 5, 5, 2])[:, None]  # clean error .2
    metrics = mce_metrics(suite_of(ours, torch.arange(10) < 1, pairs), Reference("r", theirs.double().numpy()), 0.95)
    assert metrics["corruption_errors"] == pytest.approx({"fog": 8 / 12, "snow": 12 / 10})
    assert metrics["relative_corruption_errors"] == pytest.approx({"fog": 6 / 8, "snow": 10 / 6})
    assert metrics["mce"] == pytest.approx((8 / 12 + 12 / 10) / 2)
    assert metrics["relative_mce"] == pytest.approx((6 / 8 + 10 / 6) / 2)


def test_validation_corruptions_are_not_in_the_mce():
    pairs = [("fog", 3), ("saturate", 3)]
    ours = torch.tensor([[1, 0], [1, 1]]).bool()
    reference = Reference("r", np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    metrics = mce_metrics(suite_of(ours, torch.zeros(2).bool(), pairs), reference, 0.95)
    assert metrics["mce"] == 0.5
    assert metrics["corruption_errors"] == {"fog": 0.5, "saturate": 2.0}


def test_where_the_reference_makes_no_error_the_ratio_is_undefined_and_named():
    pairs = [("fog", 3), ("snow", 3)]
    reference = Reference("r", np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    metrics = mce_metrics(suite_of(torch.ones(2, 2).bool(), torch.zeros(2).bool(), pairs), reference, 0.95)
    assert metrics["mce_undefined"] == ["fog"]
    assert metrics["mce"] == 2.0
    assert metrics["relative_mce_undefined"] == ["fog", "snow"]
    assert "relative_mce" not in metrics


@pytest.mark.parametrize(
    ("data", "given", "says"),
    [
        (imagenet_like(classes=10, side=32), {}, "1000 classes at 3x224x224; these are 10 classes at 3x32x32"),
        (imagenet_like(side=64), {}, "3x64x64"),
        (imagenet_like(), {"algorithm": "all"}, "which mCE leaves out"),
        (imagenet_like(), {"reference": "imagenet_alexnet"}, "Did you mean 'imagenet-alexnet'"),
    ],
)
def test_a_reference_of_other_data_is_refused(data, given, says):
    asked = entry(**given)
    pairs = [("fog", 1), ("saturate", 1)] if asked.algorithm == "all" else PAIRS
    with pytest.raises(UserError, match=says):
        check_reference("corruptions.c", asked, pairs, data)


@pytest.fixture(scope="module")
def earlier(digits_subject, tmp_path_factory):
    """(a suite on disk, its samples, its entry)."""
    few = digits_subject.subset(torch.arange(20))
    asked = CorruptionEntry(corruptions=["fog", "contrast"], severities=(1, 5), upsample=32)
    directory = tmp_path_factory.mktemp("reports") / "common"
    write_artifacts(assess_suite("common", asked, few, lambda _: None), directory, few, started=0)
    return directory, few, asked


def test_an_earlier_suite_is_a_reference_and_its_errors_are_kept_with_the_result(earlier, mlp_subject):
    directory, few, asked = earlier
    other = mlp_subject.subset(torch.arange(20))
    given = asked.model_copy(update={"reference": str(directory)})
    found = assess_suite("mine", given, other, lambda _: None)
    ours = (found.data["corruption_predictions"] != other.dataset.targets).double().sum(1)
    theirs = found.data["reference_wrong"][:-1].double().sum(1)
    expected = [float(ours[i : i + 2].sum() / theirs[i : i + 2].sum()) for i in (0, 2)]
    assert found.metrics["mce"] == pytest.approx(np.mean(expected))
    assert "mce_partial" in [c.code for c in found.caveats]
    assert found.kwargs["reference"]["model_digest"] == few.classifier.digest
    assert str(directory) not in str(found.kwargs)


@pytest.mark.parametrize(
    ("change", "says"), [({"severities": (2,)}, "it has no fog-2"), ({"upsample": 40}, "upsample 32 there, 40 here")]
)
def test_an_earlier_suite_of_another_protocol_is_refused(earlier, change, says):
    directory, few, asked = earlier
    given = asked.model_copy(update={**change, "reference": str(directory)})
    with pytest.raises(UserError, match=says):
        assess_suite("mine", given, few, lambda _: None)


def test_an_earlier_suite_on_other_samples_is_refused_before_anything_is_corrupted(earlier, digits_subject):
    directory, few, asked = earlier
    given = asked.model_copy(update={"reference": str(directory)})
    with pytest.raises(UserError, match="other samples"):
        assess_suite("mine", given, digits_subject.subset(torch.arange(1, 21)), lambda _: None)
    wrong_label = replace(few, dataset=replace(few.dataset, targets=few.dataset.targets.roll(1)))
    with pytest.raises(UserError, match="other targets"):
        assess_suite("mine", given, wrong_label, lambda _: None)


def test_the_bootstrap_interval_of_a_mean_is_the_normal_one_where_both_hold():
    generator = np.random.default_rng(3)
    rows = (generator.random((1, 2000)) < 0.3).astype(float)
    low, high = percentile_interval(bootstrap_means(rows)[:, 0])
    mean, half = rows.mean(), 1.96 * rows.std() / np.sqrt(2000)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.003)


def test_the_bootstrap_draws_the_same_images_for_every_row():
    rows = np.random.default_rng(0).random((1, 50))
    draws = bootstrap_means(np.concatenate([rows, 2 * rows]))
    assert np.allclose(draws[:, 1], 2 * draws[:, 0])
