"""Corruptions beside those of ImageNet-C: camera, common-bar, functions of the user's, plug-ins and images on disk."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from windtunnel.assessments.corruptions.assess import assess_suite
from windtunnel.assessments.corruptions.built_in import CAMERA, COMMON_BAR, rotate, translate
from windtunnel.assessments.corruptions.jobs import Job, run_job
from windtunnel.assessments.corruptions.preflight import preflight
from windtunnel.assessments.corruptions.rows import CorruptionRow, corruption_algorithm
from windtunnel.assessments.corruptions.table import ROWS, corruptions_of
from windtunnel.core.errors import UserError
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import write_artifacts
from windtunnel.registry import plugins
from windtunnel.registry.plugins import Lazy, Library

BUDGET = Budget(epsilon=0.1)
OWN = [*CAMERA, *COMMON_BAR]


@pytest.fixture(autouse=True)
def _own_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.runtime.batch_runner.CHECKPOINTS", tmp_path / "checkpoints")


def picture(side=32, channels=3):
    """A smooth image with an edge, uint8."""
    rows, columns = np.mgrid[:side, :side] / side
    planes = [90 + 60 * np.sin(3 * rows + c) + 60 * (columns > 0.5) for c in range(channels)]
    return np.uint8(np.stack(planes, axis=-1))


def corrupted(name, severity, image, seed=0):
    entry = CorruptionEntry(library="windtunnel", algorithm=name)
    return run_job(Job(ROWS["windtunnel", name], severity, image[None], (seed,), entry))[0]


@pytest.mark.parametrize("name", OWN)
def test_a_seed_gives_the_same_bytes_and_more_severity_more_change(name):
    image = picture()
    for shape in (image, image[..., :1], image[:17, :23]):
        assert corrupted(name, 3, shape).shape == shape.shape
    assert np.array_equal(corrupted(name, 3, image, 5), corrupted(name, 3, image, 5))
    changes = [
        np.mean([np.abs(corrupted(name, s, image, seed) / 255.0 - image / 255.0).mean() for seed in range(6)])
        for s in range(1, 6)
    ]
    assert all(milder < harder for milder, harder in zip(changes, changes[1:], strict=False))
    assert changes[0] > 0


@pytest.mark.parametrize("name", [name for name in OWN if name != "blur"])
def test_another_seed_draws_another_corruption(name):
    assert len({corrupted(name, 3, picture(), seed).tobytes() for seed in range(8)}) > 1


def test_added_noise_has_the_standard_deviation_of_gaussian_noise():
    grey = np.full((64, 64, 3), 0.5)
    for name in (
        "blue_noise",
        "brownish_noise",
        "perlin_noise",
        "plasma_noise",
        "single_frequency",
        "concentric_waves",
    ):
        change, strengths = COMMON_BAR[name]
        field = change(grey, strengths[2], np.random.default_rng(1)) - grey
        assert field.std() == pytest.approx(0.18, rel=1e-6)
        assert abs(field.mean()) < 1e-9


def test_a_positive_angle_turns_counter_clockwise_and_a_translation_goes_right_and_up():
    image = np.zeros((5, 5, 1))
    image[2, 4] = 1  # right of the middle
    assert rotate(image, 90)[0, 2] == pytest.approx(1)
    assert translate(image, -1, 2)[0, 3] == 1
    assert translate(image, 0.5, 0)[2, 4] == 0.5


def test_the_two_suites_are_of_windtunnel_without_saying_so():
    for suite, names in (("camera", CAMERA), ("common-bar", COMMON_BAR)):
        entry = CorruptionEntry(algorithm=suite)
        assert entry.library == "windtunnel"
        assert set(corruptions_of(entry, "x")) == {*names}


@pytest.fixture
def mine(monkeypatch):
    """A module of the user's."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def haze(image, severity, seed):
    light = np.random.rand() * 0.01 + severity / 10  # noqa: NPY002  seeded around the call
    return np.uint8(image * (1 - light) + 255 * light)


def suite_of(entry, subject):
    """(suite, children by name)."""
    children = {}

    def keep(child):
        children[child.name] = child.data["perturbed_inputs"].clone()

    return assess_suite("s", entry, subject, keep), children


def test_a_function_of_the_users_is_a_suite_like_any_other(mine, digits_subject):
    mine.haze = haze
    few = digits_subject.subset(torch.arange(6))
    entry = CorruptionEntry(library="function", algorithm="mine:haze", severities=[1, 5])
    preflight("corruptions.c", entry, BUDGET, few.classifier, few.dataset)
    suite, children = suite_of(entry, few)
    assert set(children) == {"haze-1", "haze-5"}
    again, _ = suite_of(entry, few)
    assert torch.equal(suite.data["perturbed_inputs"], again.data["perturbed_inputs"])
    assert suite.semantics.algorithm.name == "mine:haze"
    assert suite.metrics["accuracy_by_family"].keys() == {"custom"}
    assert float(children["haze-5"].mean()) > float(children["haze-1"].mean()) > float(few.dataset.inputs.mean())


def test_several_functions_make_a_suite_and_names_are_unique(mine):
    entry = CorruptionEntry(library="function", corruptions=["mine:haze", "mine:rain"])
    assert list(corruptions_of(entry, "x")) == ["haze", "rain"]
    with pytest.raises(UserError, match="two functions are called haze"):
        corruptions_of(CorruptionEntry(library="function", corruptions=["mine:haze", "other:haze"]), "x")
    with pytest.raises(UserError, match="module:function"):
        corruptions_of(CorruptionEntry(library="function"), "x")


def _in_place(image, severity, seed):
    image[:] = 0


def _leaves(image, severity, seed):
    sys.exit(0)


BAD = {
    "shape": (lambda i, s, r: i[:4], "shape 4x8x1; it was given 8x8x1"),
    "floats": (lambda i, s, r: i / 255, "returned float64; uint8"),
    "not a number": (lambda i, s, r: i * np.nan, "returned NaN or infinity in float64"),
    "no image": (lambda i, s, r: "image", "is no array"),
    "in place": (_in_place, "returned None"),
    "exception": (lambda i, s, r: 1 / 0, "raised ZeroDivisionError"),
    "exit": (_leaves, r"it called sys.exit\(0\)"),
    "arguments": (lambda image: image, "raised TypeError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_function_that_does_wrong_is_one_line_before_anything_is_computed(mine, digits_subject, name):
    mine.wrong, says = BAD[name]
    before = digits_subject.dataset.digest()
    entry = CorruptionEntry(library="function", algorithm="mine:wrong")
    with pytest.raises(UserError, match=f"mine:wrong at severity 1.*{says}") as error:
        preflight("corruptions.c", entry, BUDGET, digits_subject.classifier, digits_subject.dataset)
    assert "\n" not in str(error.value)
    assert digits_subject.dataset.digest() == before


def test_the_adapter_of_a_plug_in_corrupts_and_is_checked_too(mine, monkeypatch, digits_subject):
    mine.ROWS = (CorruptionRow(corruption_algorithm("mine", "half")),)
    mine.corrupt = lambda request: request.image // 2
    library = Library("mine", "corruptions", None, Lazy("mine:ROWS"), adapter=Lazy("mine:corrupt"))
    ours = plugins.libraries("corruptions")
    module = sys.modules["windtunnel.assessments.corruptions.jobs"]
    monkeypatch.setattr(module, "library_of", lambda name, family: {**ours, "mine": library}[name])
    job = Job(mine.ROWS[0], 1, picture()[None], (0,), CorruptionEntry(library="mine", algorithm="half"))
    assert np.array_equal(run_job(job)[0], picture() // 2)
    mine.corrupt = lambda request: request.image / 2
    with pytest.raises(UserError, match="mine half at severity 1 returned float64"):
        run_job(job)


@pytest.fixture
def on_disk(tmp_path, digits_subject):
    """Subject of six samples with ids of a folder of classes, and their images under two corruptions."""
    few = digits_subject.subset(torch.arange(6))
    names = tuple(f"{few.dataset.class_names[t]}/im{i}.png" for i, t in enumerate(few.dataset.targets.tolist()))
    subject = replace(few, dataset=replace(few.dataset, ids=names))
    for corruption, shift in (("fog", 20), ("haze", 60)):
        for severity in (1, 3):
            for name, image in zip(names, subject.dataset.inputs, strict=True):
                file = tmp_path / "pictures" / corruption / str(severity) / name.replace(".png", ".bmp")
                file.parent.mkdir(parents=True, exist_ok=True)
                pixels = (image[0] * 255).round().to(torch.int64).add(shift * severity).clamp(0, 255)
                Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
    return subject, CorruptionEntry(library="folder", path=str(tmp_path / "pictures"), severities=[1, 3])


def test_images_on_disk_are_matched_by_name(on_disk):
    subject, entry = on_disk
    preflight("corruptions.c", entry, BUDGET, subject.classifier, subject.dataset)
    suite, children = suite_of(entry, subject)
    assert set(children) == {"fog-1", "fog-3", "haze-1", "haze-3"}
    rounded = (subject.dataset.inputs * 255).round()
    assert torch.allclose(children["fog-3"] * 255, (rounded + 60).clamp(0, 255), atol=1e-3)
    assert set(suite.metrics["accuracy_by_family"]) == {"weather", "custom"}
    backwards = subject.subset(torch.arange(5, -1, -1))
    assert torch.equal(suite_of(entry, backwards)[1]["fog-3"], children["fog-3"].flip(0))
    chosen = entry.model_copy(update={"algorithm": "choice", "corruptions": ("haze",)})
    assert list(corruptions_of(chosen, "x")) == ["haze"]


def test_ids_without_a_class_are_matched_by_the_name_of_the_file(on_disk):
    subject, entry = on_disk
    bare = tuple(name.split("/")[1].removesuffix(".png") for name in subject.dataset.ids)
    nameless = replace(subject, dataset=replace(subject.dataset, ids=bare))
    by_path, by_name = (suite_of(entry, s)[0].data["perturbed_inputs"] for s in (subject, nameless))
    assert torch.equal(by_path, by_name)
    other = replace(nameless.dataset, targets=nameless.dataset.targets.flip(0))
    with pytest.raises(UserError, match=r"lies in folder .* is of class"):
        preflight("corruptions.c", entry, BUDGET, subject.classifier, other)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "nowhere"}, r"corruptions.c.path: nowhere: no such folder"),
        ({"severities": (1, 5)}, r"fog/5: no such folder"),
        ({"algorithm": "choice", "corruptions": ("haz",)}, "Did you mean 'haze'"),
        ({"algorithm": "common"}, "is not a corruption or a category"),
        ({"upsample": 32}, "corrupted already"),
    ],
)
def test_what_a_folder_lacks_is_said_in_one_line(on_disk, change, says):
    subject, entry = on_disk
    with pytest.raises(UserError, match=says):
        preflight("corruptions.c", entry.model_copy(update=change), BUDGET, subject.classifier, subject.dataset)


def test_a_missing_image_and_one_of_another_size_are_refused(on_disk):
    subject, entry = on_disk
    file = next(Path(entry.path).glob("fog/1/*/im0.bmp"))
    Image.new("L", (9, 8)).save(file)
    with pytest.raises(UserError, match="is 8x9, and the assessed images are 8x8"):
        suite_of(entry, subject)
    file.unlink()
    with pytest.raises(UserError, match=r"fog/1: has no image for sample .*im0.png"):
        preflight("corruptions.c", entry, BUDGET, subject.classifier, subject.dataset)


@pytest.mark.parametrize("keys", [{"library": "folder"}, {"path": "x"}])
def test_a_path_and_the_library_folder_belong_together(keys):
    with pytest.raises(ValueError, match="path"):
        CorruptionEntry(**keys)


def test_a_reference_on_the_same_folder_gives_mce_and_one_of_another_library_none(on_disk, tmp_path):
    subject, entry = on_disk
    suite, _ = suite_of(entry, subject)
    other = write_artifacts(suite, tmp_path / "elsewhere" / "s", subject, started=0).directory
    measured, _ = suite_of(entry.model_copy(update={"reference": str(other)}), subject)
    wrong = (suite.data["corruption_predictions"] != subject.dataset.targets).any()
    assert measured.metrics.get("mce") == (1.0 if wrong else None)
    with pytest.raises(UserError, match="library folder there, windtunnel here"):
        preflight(
            "corruptions.c",
            CorruptionEntry(algorithm="camera", reference=str(other)),
            BUDGET,
            subject.classifier,
            subject.dataset,
        )
