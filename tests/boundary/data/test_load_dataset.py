"""Every source gives the same samples whatever form it keeps them in, and every bad input is one clear line."""

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import ExifTags, Image

from windtunnel.boundary.data.load import load_dataset, read_assessed, read_train, save_datasets
from windtunnel.boundary.data.record import origin_of
from windtunnel.boundary.data.sources import SOURCES, middle, turned_pictures
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.data import Data

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 5), dtype=np.uint8)
LABELS = np.arange(12) % 3


def idx_bytes(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def save_npz(path: Path, **arrays: np.ndarray) -> Data:
    np.savez(path, **arrays)
    return Data(source="npz", path=str(path))


def save_folder(folder: Path, images: np.ndarray, words: list[str]) -> Path:
    for i, (image, word) in enumerate(zip(images, words, strict=True)):
        (folder / word).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / word / f"{i:03d}.png")
    return folder


def the_line(data: Data) -> str:
    with pytest.raises(UserError) as caught:
        load_dataset(data, 0)
    line = str(caught.value)
    assert "\n" not in line
    return line


# --- sources ---


def test_digits_are_held_out_by_class_and_by_seed():
    test, train = load_dataset(Data(), 0)
    assert (len(test), len(train)) == (540, 1257)
    assert not set(test.ids) & set(train.ids)
    assert test.inputs.shape == (540, 1, 8, 8)
    assert float(test.inputs.max()) == 1.0
    share = torch.bincount(test.targets) / (torch.bincount(test.targets) + torch.bincount(train.targets))
    assert (share - 0.3).abs().max() < 0.01
    assert load_dataset(Data(), 0)[0].digest() == test.digest()
    assert load_dataset(Data(), 1)[0].digest() != test.digest()


def test_npz_idx_and_folder_of_the_same_images_are_equal(tmp_path):
    npz = save_npz(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx_bytes(IMAGES)))
    (tmp_path / "y").write_bytes(idx_bytes(LABELS.astype(np.uint8)))
    idx = Data(source="idx", path=str(tmp_path / "x.gz"), labels=str(tmp_path / "y"))
    words = [str(label) for label in LABELS]
    folder = Data(source="folder", path=str(save_folder(tmp_path / "f", IMAGES, words)))
    np.save(tmp_path / "x.npy", IMAGES[..., None])
    np.save(tmp_path / "y.npy", LABELS[:, None])
    npy = Data(source="npy", path=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.npy"))
    a, b, c, d = (load_dataset(data, 0)[0] for data in (npz, idx, folder, npy))
    assert a.inputs.shape == (12, 1, 6, 5)
    assert torch.equal(a.inputs, d.inputs)
    assert torch.equal(a.targets, d.targets)
    assert torch.equal(a.inputs, torch.from_numpy(IMAGES)[:, None] / 255)
    assert torch.equal(a.inputs, b.inputs)
    assert torch.equal(a.targets, b.targets)
    order = torch.tensor([int(name.split("/")[1][:3]) for name in c.ids])  # a folder is read in the order of its names
    assert torch.equal(c.inputs, a.inputs[order])
    assert torch.equal(c.targets, a.targets[order])
    assert a.class_names == b.class_names == c.class_names == ("0", "1", "2")


def test_a_label_means_the_same_class_in_both_splits_of_a_folder(tmp_path):
    test = save_folder(tmp_path / "test", IMAGES[:2], ["ant", "cat"])
    train = save_folder(tmp_path / "train", IMAGES[:3], ["ant", "bee", "cat"])
    a, b = load_dataset(Data(source="folder", path=str(test), train_path=str(train)), 0)
    assert a.class_names == b.class_names == ("ant", "bee", "cat")
    assert a.targets.tolist() == [0, 2]


def test_class_names_in_params_decide_the_indices_of_a_folder(tmp_path):
    folder = save_folder(tmp_path, IMAGES[:2], ["ant", "cat"])
    dataset, _ = load_dataset(Data(source="folder", path=str(folder), class_names=["cat", "dog", "ant"]), 0)
    assert dataset.targets.tolist() == [2, 0]


def test_a_csv_labels_a_flat_folder(tmp_path):
    save_folder(tmp_path / "images", IMAGES[:3], ["."] * 3)
    (tmp_path / "labels.csv").write_text("file,label\n000.png,cat\n001.png,ant\n002.png,cat\n")
    data = Data(source="folder", path=str(tmp_path / "images"), labels=str(tmp_path / "labels.csv"))
    dataset, _ = load_dataset(data, 0)
    assert dataset.class_names == ("ant", "cat")
    assert dataset.targets.tolist() == [1, 0, 1]


def test_a_folder_without_labels_needs_only_the_number_of_classes(tmp_path):
    save_folder(tmp_path, IMAGES[:3], ["."] * 3)
    data = Data(source="folder", path=str(tmp_path), labels="none", class_names=10)
    dataset, _ = load_dataset(data, 0)
    assert not dataset.labelled
    assert dataset.targets.tolist() == [-1, -1, -1]
    assert dataset.num_classes == 10
    assert "class_names" in the_line(data.model_copy(update={"class_names": None}))


def test_images_of_many_sizes_and_modes_become_alike_by_resize_and_channels(tmp_path):
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    Image.new("RGB", (9, 7), (255, 0, 0)).save(tmp_path / "b.png")
    Image.new("RGBA", (3, 3), (0, 255, 0, 128)).save(tmp_path / "c.png")
    Image.new("P", (4, 8)).save(tmp_path / "d.png")
    data = Data(source="folder", path=str(tmp_path), labels="none", class_names=2)
    assert "set data.resize" in the_line(data)
    dataset, _ = load_dataset(data.model_copy(update={"resize": (6, 4), "channels": 3}), 0)
    assert dataset.inputs.shape == (4, 3, 6, 4)
    assert dataset.inputs[1, :, 3, 2].tolist() == [1.0, 0.0, 0.0]
    assert dataset.metadata["resize"] == [6, 4]


def test_resize_is_height_then_width_once_for_files_and_for_arrays(tmp_path):
    image = np.random.default_rng(1).integers(0, 256, (12, 10), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image).resize((4, 6), Image.Resampling.BILINEAR)) / 255
    folder = Data(source="folder", path=str(save_folder(tmp_path / "f", image[None], ["a"])), resize=(6, 4))
    np.testing.assert_allclose(load_dataset(folder, 0)[0].inputs[0, 0].numpy(), expected, atol=1e-6)
    array = save_npz(tmp_path / "a.npz", x=image[None], y=np.zeros(1, int)).model_copy(update={"resize": (6, 4)})
    # torch's antialiased bilinear is PIL's, without PIL's rounding to whole bytes after each of its two passes.
    np.testing.assert_allclose(load_dataset(array, 0)[0].inputs[0, 0].numpy(), expected, atol=1.5 / 255)


def test_only_the_chosen_files_of_a_folder_are_read(tmp_path):
    save_folder(tmp_path, IMAGES[:3], ["a"] * 3)
    (tmp_path / "a/zzz.png").write_bytes(b"no image")
    dataset, _ = load_dataset(Data(source="folder", path=str(tmp_path), samples={"n": 3}), 0)
    assert len(dataset) == 3
    assert "zzz.png" in the_line(Data(source="folder", path=str(tmp_path)))


def test_hidden_files_and_folders_are_no_samples(tmp_path):
    save_folder(tmp_path, IMAGES[:3], ["a", "b", ".ipynb_checkpoints"])
    (tmp_path / "a/._000.png").write_bytes(b"of macOS")
    dataset, _ = load_dataset(Data(source="folder", path=str(tmp_path)), 0)
    assert dataset.ids == ("a/000.png", "b/001.png")
    assert dataset.class_names == ("a", "b")


def test_pictures_that_exif_says_to_turn_are_named(tmp_path):
    save_folder(tmp_path, IMAGES[:2], ["a", "b"])
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(IMAGES[2]).save(tmp_path / "a/turned.jpg", exif=exif)
    data = Data(source="folder", path=str(tmp_path))
    dataset, _ = load_dataset(data, 0)
    assert "EXIF says to turn 1 of 3 pictures (a/turned.jpg, ...)" in turned_pictures(data, dataset.ids)
    assert turned_pictures(data, ("a/000.png", "b/001.png")) == ""
    assert turned_pictures(Data(), ("digit-0001",)) == ""


def test_a_function_of_the_users_gives_arrays_or_data_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_data.py").write_text(
        "import numpy as np\n"
        "def one(n=4): return np.zeros((n, 3, 5, 5), np.float32), np.arange(n) % 2\n"
        "def two(): return one(6), one(8)\n"
        "def nothing(): return 7\n"
        "def fails(): raise ValueError('no network')\n"
    )
    dataset, train = load_dataset(Data(source="function", function="their_data:one", kwargs={"n": 5}), 0)
    assert (len(dataset), train) == (5, None)
    dataset, train = load_dataset(Data(source="function", function="their_data:two"), 0)
    assert train is not None
    assert (len(dataset), len(train)) == (6, 8)
    assert "returned a int" in the_line(Data(source="function", function="their_data:nothing"))
    assert "line 5: no network" in the_line(Data(source="function", function="their_data:fails"))
    assert "Did you mean 'two'" in the_line(Data(source="function", function="their_data:twoo"))
    assert "cannot import" in the_line(Data(source="function", function="not_there:two"))


# --- conversion ---


def test_grey_becomes_colour_by_repetition_and_colour_grey_by_luminance(tmp_path):
    grey = save_npz(tmp_path / "g.npz", x=IMAGES, y=LABELS)
    colour, _ = load_dataset(grey.model_copy(update={"channels": 3}), 0)
    assert torch.equal(colour.inputs[:, 0], colour.inputs[:, 2])
    pure = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)  # red, green, blue
    data = save_npz(tmp_path / "c.npz", x=pure, y=np.arange(3))
    dataset, _ = load_dataset(data.model_copy(update={"channels": 1}), 0)
    assert dataset.inputs.flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])


def test_the_range_of_the_source_is_mapped_on_zero_to_one_and_recorded(tmp_path):
    x = np.linspace(-1, 1, 4 * 9, dtype=np.float32).reshape(4, 3, 3)
    data = save_npz(tmp_path / "a.npz", x=x, y=np.zeros(4, int)).model_copy(update={"value_range": (-1.0, 1.0)})
    dataset, _ = load_dataset(data, 0)
    assert torch.allclose(dataset.inputs.flatten(), torch.linspace(0, 1, 36))
    assert dataset.metadata["value_range_of_source"] == [-1.0, 1.0]
    assert dataset.num_classes == 1


def test_tabular_data_keep_their_own_range_whatever_is_chosen(tmp_path):
    x = np.array([[0.0, 5.0], [-3.0, 1.0], [2.0, 9.0]])
    data = save_npz(tmp_path / "a.npz", x=x, y=np.array([0, 1, 1]))
    whole, _ = load_dataset(data, 0)
    one, _ = load_dataset(data.model_copy(update={"samples": Data(samples={"n": 1}).samples}), 0)
    assert whole.value_range == one.value_range == (-3.0, 9.0)
    assert "outside [0, 1]" in the_line(data.model_copy(update={"value_range": (0.0, 1.0)}))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(x=hnp.arrays(np.uint8, st.tuples(*[st.integers(1, 5)] * 3)), size=st.integers(1, 7) | st.none())
def test_whatever_bytes_an_image_holds_the_model_sees_zero_to_one(tmp_path, x, size):
    data = save_npz(tmp_path / "h.npz", x=x, y=np.zeros(len(x), np.int64)).model_copy(update={"resize": size})
    dataset, _ = load_dataset(data, 0)
    assert dataset.inputs.dtype == torch.float32
    assert float(dataset.inputs.min()) >= 0
    assert float(dataset.inputs.max()) <= 1


@pytest.mark.parametrize("how", ["first", "random", "stratified"])
def test_the_selection_is_of_the_asked_size_repeatable_and_recorded(how):
    data = Data(samples={"n": 37, "selection": how, "seed": 5})
    dataset, _ = load_dataset(data, 0)
    again, _ = load_dataset(data, 0)
    assert dataset.ids == again.ids
    assert len(set(dataset.ids)) == 37
    assert dataset.metadata["samples"] == {"of": 540, "n": 37, "selection": how, "seed": 5}
    if how == "stratified":
        assert set(torch.bincount(dataset.targets, minlength=10).tolist()) <= {3, 4}


# --- bad input: one clear line each ---


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((0, 4, 4)), "y": np.zeros(0, int)}, "holds no samples"),
        ({"x": np.full((2, 4, 4), np.nan), "y": np.zeros(2, int)}, "sample 00000 holds NaN"),
        ({"x": np.array([np.zeros((4, 4)), np.full((4, 4), np.inf)]), "y": np.zeros(2, int)}, "00001 holds infinity"),
        ({"x": np.full((2, 4, 4), 7.0), "y": np.zeros(2, int)}, "span [7, 7], outside [0, 1]"),
        ({"x": np.full((2, 4, 4), -0.1), "y": np.zeros(2, int)}, "data.value_range"),
        ({"x": np.zeros((2, 4, 4)), "y": np.zeros(3, int)}, "3 labels of shape (3,) for 2 samples"),
        ({"x": np.zeros((2, 4, 4)), "y": np.zeros(0, int)}, "class_names"),
        ({"x": np.zeros((2, 4, 4)), "y": np.array([0, -1])}, "labels span -1 to 0"),
        ({"x": np.zeros((2, 4, 4)), "y": np.array([0.0, 1.0])}, "labels of type float64"),
        ({"x": np.zeros((2, 4, 4)), "y": np.eye(2, dtype=int)}, "labels of shape (2, 2)"),
        ({"x": np.zeros((2, 4, 4)), "y": np.array([0, 2]), "class_names": np.array(["a", "b"])}, "outside 0 to 1"),
        ({"x": np.zeros((2, 2, 2, 2, 2)), "y": np.zeros(2, int)}, "inputs of shape (2, 2, 2, 2, 2)"),
        ({"x": np.array(3.0), "y": np.zeros(1, int)}, "single value"),
        ({"x": np.array(3.0), "y": np.zeros(1, int), "ids": np.array(["a"])}, "single value"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2, int)}, "not numbers"),
        ({"x": np.zeros((2, 4, 4)), "y": np.zeros(2, int), "ids": np.array(["s", "s"])}, "1 different ids for 2"),
        ({"y": np.zeros(2, int)}, "has no array 'x'"),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tmp_path, arrays, words):
    assert words in the_line(save_npz(tmp_path / "bad.npz", **arrays))


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "not an .npz"), (b"PK\x03\x04 cut short", "not an .npz"), (b"plain text", "not an .npz")],
)
def test_a_file_that_is_no_npz_is_refused_in_one_line(tmp_path, content, words):
    (tmp_path / "a.npz").write_bytes(content)
    assert words in the_line(Data(source="npz", path=str(tmp_path / "a.npz")))


def test_an_npz_with_pickled_objects_is_never_unpickled(tmp_path):
    data = save_npz(tmp_path / "a.npz", x=np.array([{"a": 1}, None], dtype=object), y=np.zeros(2, int))
    assert "not an .npz of plain arrays" in the_line(data)


@pytest.mark.parametrize("shape", [(2, 4, 5, 3), (2, 4, 5, 1), (2, 3, 4, 5), (2, 3, 4, 3)])
def test_images_with_channels_last_become_channels_first(tmp_path, shape):
    """Where the second axis may be the channels it is: (2, 3, 4, 3) stays as it is."""
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    given = load_dataset(save_npz(tmp_path / "a.npz", x=x, y=np.arange(2)), 0)[0].inputs
    expected = x if shape[1] == 3 else x.transpose(0, 3, 1, 2)
    assert torch.equal(given, torch.from_numpy(np.ascontiguousarray(expected)))


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: path.write_bytes(b"no array"), "not a .npy of a plain array"),
        (lambda path: np.save(path, np.array([{}, None], dtype=object), allow_pickle=True), "not a .npy of a plain"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00v\x00"), "not a .npy of a plain array"),
        (lambda path: np.save(path, np.zeros((0, 4, 4))), "x.npy"),
        (lambda path: np.savez(path.open("wb"), x=np.zeros((2, 4, 4))), "not a .npy of a plain array"),
    ],
)
def test_what_is_no_npy_is_refused_in_one_line(tmp_path, write, words):
    write(tmp_path / "x.npy")
    assert words in the_line(Data(source="npy", path=str(tmp_path / "x.npy")))


def test_a_damaged_npz_is_refused_in_one_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00 not the rest")
    assert "a.npz" in the_line(Data(source="npz", path=str(tmp_path / "a.npz")))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x", b"\x00\x00\x0d\x01", "not an idx file"),
        ("x", idx_bytes(IMAGES)[:-1], "its header says 12x6x5"),
        ("x", idx_bytes(IMAGES)[:7], "ends inside its header"),
        ("x.gz", b"not gzip", "cannot be read"),
        ("x.gz", gzip.compress(idx_bytes(IMAGES), mtime=0)[:40], "cannot be read"),
    ],
    ids=["no idx", "short", "short header", "no gzip", "damaged gzip"],
)
def test_a_damaged_idx_file_is_refused_in_one_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    assert words in the_line(Data(source="idx", path=str(tmp_path / name), class_names=3))


@pytest.mark.parametrize("source", ["npz", "idx", "folder"])
def test_a_missing_file_is_named_with_its_key(source):
    assert "data.path" in the_line(Data(source=source))
    assert "nowhere/at/all" in the_line(Data(source=source, path="nowhere/at/all"))


def test_bad_folders_are_refused_in_one_line(tmp_path):
    data = Data(source="folder", path=str(tmp_path))
    assert "holds no images" in the_line(data)
    save_folder(tmp_path, IMAGES[:2], ["a", "."])
    assert "in no class folder" in the_line(data)
    (tmp_path / "l.csv").write_text("001.png,a\n")
    with_csv = data.model_copy(update={"labels": str(tmp_path / "l.csv")})
    assert "no line for a/000.png" in the_line(with_csv)
    (tmp_path / "l.csv").write_text("001.png,a\na/000.png,b\nlost.png,b\n")
    assert "names lost.png" in the_line(with_csv)
    (tmp_path / "l.csv").write_bytes(b"\xff\xfe\x00")
    assert "is no text in UTF-8" in the_line(with_csv)


def test_a_folder_that_is_no_class_is_refused_with_the_nearest_name(tmp_path):
    save_folder(tmp_path, IMAGES[:1], ["dgo"])
    assert "Did you mean 'dog'" in the_line(Data(source="folder", path=str(tmp_path), class_names=["cat", "dog"]))


def test_images_of_more_than_eight_bits_are_refused_not_clipped(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "a/deep.png")
    assert "more than 8 bits" in the_line(Data(source="folder", path=str(tmp_path)))


def test_a_share_that_leaves_a_class_without_samples_is_refused():
    assert "data.test_fraction" in the_line(Data(test_fraction=0.001))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": torch.zeros(2, 1, 3, 3, dtype=torch.float64)}, "float32"),
        ({"inputs": torch.full((2, 1, 3, 3), 2.0)}, "outside [0, 1]"),
        ({"inputs": torch.full((2, 1, 3, 3), torch.nan)}, "holds NaN"),
        ({"inputs": torch.zeros(0, 1, 3, 3)}, "holds no samples"),
        ({"targets": torch.tensor([0, 5])}, "labels span 0 to 5"),
        ({"ids": ("a",)}, "1 ids for 2 samples"),
    ],
)
def test_a_data_set_of_the_users_own_is_held_to_the_same_rules(change, words, monkeypatch):
    good = {
        "inputs": torch.zeros(2, 1, 3, 3),
        "targets": torch.tensor([0, 1]),
        "ids": ("a", "b"),
        "class_names": ("x", "y"),
    }
    monkeypatch.setattr(
        "windtunnel.boundary.data.sources.resolve", lambda reference, where: lambda: Dataset(**{**good, **change})
    )
    assert words in the_line(Data(source="function", function="m:f"))


# --- on disk ---


def test_what_was_saved_is_read_back_and_equal_data_are_equal_bytes(tmp_path):
    assessed, train = load_dataset(Data(samples={"n": 20, "selection": "random"}), 3)
    for folder in ("a", "b"):
        save_datasets(assessed, train, tmp_path / folder)
    for name in ("assessed.pt", "train.pt", "dataset.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    back = read_assessed(tmp_path / "a")
    assert back.digest() == assessed.digest()
    assert back.class_names == assessed.class_names
    assert back.metadata["samples"] == assessed.metadata["samples"]
    assert torch.equal(read_train(tmp_path / "a").inputs, train.inputs)


def test_saving_without_a_training_split_leaves_none_behind(tmp_path):
    assessed, train = load_dataset(Data(), 0)
    save_datasets(assessed, train, tmp_path)
    save_datasets(assessed, None, tmp_path)
    assert read_train(tmp_path) is None
    assert not (tmp_path / "train.pt").exists()


def test_mnist_is_read_as_published(shared):
    folder = shared / "data/mnist"
    data = Data(
        source="idx", path=str(folder / "t10k-images-idx3-ubyte.gz"), labels=str(folder / "t10k-labels-idx1-ubyte.gz")
    )
    dataset, _ = load_dataset(data, 0)
    assert dataset.inputs.shape == (10_000, 1, 28, 28)
    assert dataset.targets[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.parametrize(
    ("have", "wanted", "expected"),
    [
        ((10, 6), None, (6, 6)), ((6, 10), None, (6, 6)), ((10, 10), (5, 5), (10, 10)), ((12, 9), (4, 2), (12, 6)),
        ((9, 20), (3, 6), (9, 18)),
    ],
)  # fmt: skip
def test_the_middle_is_the_largest_part_of_the_wanted_shape_and_lies_in_the_middle(have, wanted, expected):
    rows, columns = middle(have, wanted)
    assert (rows.stop - rows.start, columns.stop - columns.start) == expected
    for part, size in ((rows, have[0]), (columns, have[1])):
        assert 0 <= part.start <= size - part.stop <= part.start + 1


def test_crop_center_cuts_files_and_arrays_alike_before_they_are_resized(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (9, 15, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image[:, 3:12]).resize((3, 3), Image.Resampling.BILINEAR)) / 255
    folder = Data(source="folder", path=str(save_folder(tmp_path / "f", image[None], ["a"])), resize=3, crop="center")
    array = save_npz(tmp_path / "a.npz", x=image[None].transpose(0, 3, 1, 2), y=np.zeros(1, int))
    for data in (folder, array.model_copy(update={"resize": 3, "crop": "center"})):
        found, _ = load_dataset(data, 0)
        assert found.metadata["crop"] == "center"
        assert np.allclose(found.inputs[0].permute(1, 2, 0).numpy(), expected, atol=1.5 / 255)


def test_every_source_of_ours_is_a_phrase_that_follows_samples():
    said = {source: origin_of(source) for source in SOURCES}
    assert said["digits"] == "of digits"
    assert all(words.startswith("from ") for source, words in said.items() if source != "digits")
