"""Models of torchvision, timm and Hugging Face give the logits of the library's own pipeline, and bring their class names."""

import gzip
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.boundary.models.libraries import need
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.discovery import architecture
from windtunnel.boundary.discovery.architecture import Architecture, fitting_architecture
from windtunnel.boundary.models import views
from windtunnel.boundary.models.load import import_model, load_classifier, preview_classifier
from windtunnel.boundary.models.loaders import loader_of
from windtunnel.boundary.models.record import ModelRecord
from windtunnel.boundary.models.trust import trust_of
from windtunnel.boundary.models.views import view_of
from windtunnel.core.errors import UserError
from windtunnel.params.data import Data
from windtunnel.params.model import Model
from windtunnel.registry.plugins import View

# All twelve, and 200 images, where WINDTUNNEL_ALL_MODELS is set (`-rP` prints each difference); else the small ones.
ALL = bool(os.environ.get("WINDTUNNEL_ALL_MODELS"))
TORCHVISION = ["squeezenet1_1", "mobilenet_v3_small"] + (
    ["resnet18", "googlenet", "efficientnet_b0", "shufflenet_v2_x0_5", "regnet_y_400mf"] if ALL else []
)
TIMM = ["resnet10t", "test_vit"] + (["mobilenetv3_small_050", "convnext_atto", "levit_128s"] if ALL else [])
SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "data"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """Real images of many sizes, grey and in colour: four photographs; all: foolbox's 100, 50 of MNIST, 50 of Fashion-MNIST."""
    import foolbox

    folder = tmp_path_factory.mktemp("photographs")
    sources = Path(foolbox.__file__).parent / "data"
    for path in sorted(sources.glob("*.[jp][pn]g")) if ALL else sorted(sources.glob("imagenet_*.jpg"))[:4]:
        image = Image.open(path).convert("RGB")
        width, height = image.size
        part = image.crop((width // 9, 0, width, height - height // 5))  # no square
        part.save(folder / f"{path.stem}.png")
    for name in ("mnist", "fashion_mnist") if ALL else ():
        with gzip.open(SHARED / name / "t10k-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(16 + 50 * 784)[16:], np.uint8).reshape(50, 28, 28)
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(folder / f"{name}_{number:02d}.png")
    assert len(list(folder.iterdir())) == (200 if ALL else 4)
    return folder


def prepared(model: Model, folder: Path):
    return load_dataset(Data(source="folder", path=str(folder), labels="none"), 0, view_of(model))[0]


def pictures(folder: Path) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sorted(folder.iterdir())]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    difference = float((ours - theirs).abs().max())
    spread = float((theirs.amax(0) - theirs.amin(0)).max())  # how far apart the images are for the model
    print(f"{len(ours)} images: largest difference {difference:.1e}; the logit that varies most spans {spread:.1e}")
    assert difference <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name, photographs, tmp_path):
    need("torchvision")
    import torchvision

    model = Model(source="torchvision", name=name, weights="random")
    data = prepared(model, photographs)
    classifier = preview_classifier(model, data, None, "cpu")
    network = classifier.module.network
    transforms = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    with torch.no_grad():
        expected = torch.cat([network(transforms(picture)[None]) for picture in pictures(photographs)])
    same(classifier.logits(data.inputs, 1), expected)
    assert data.class_names[1] == "goldfish"
    assert [caveat.code for caveat in classifier.caveats] == ["random_weights"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_timm(name, photographs):
    need("torchvision", "timm")
    import timm

    model = Model(source="timm", name=name, weights="random")
    data = prepared(model, photographs)
    classifier = preview_classifier(model, data, None, "cpu")
    network = classifier.module.network
    transforms = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    with torch.no_grad():
        expected = torch.cat([network(transforms(picture)[None]) for picture in pictures(photographs)])
    same(classifier.logits(data.inputs, 1), expected)


def small_model(kind: str, folder: Path) -> str:
    """A Hugging Face classifier with its processor, saved as its authors would save it."""
    import transformers

    torch.manual_seed(0)
    labels = dict(enumerate(["ant", "bee", "cat", "dog", "eel"]))
    options = {"num_labels": 5, "id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    if kind == "vit":
        config = transformers.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=64,
            patch_size=16, **options,
        )  # fmt: skip
        processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64})
        network = transformers.ViTForImageClassification(config)
    else:
        config = transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", **options
        )
        processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 96}, crop_pct=0.875)
        network = transformers.ResNetForImageClassification(config)
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_hugging_face_from_a_local_folder(kind, photographs, tmp_path):
    need("transformers")
    import transformers

    model = Model(source="huggingface", path=small_model(kind, tmp_path / "saved"))
    data = prepared(model, photographs)
    classifier = preview_classifier(model, data, None, "cpu")
    network = transformers.AutoModelForImageClassification.from_pretrained(model.path).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(model.path)
    with torch.no_grad():
        expected = torch.cat(
            [network(**processor(picture, return_tensors="pt")).logits for picture in pictures(photographs)]
        )
    same(classifier.logits(data.inputs, 1), expected)
    assert data.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert not classifier.caveats


# --- what else a source brings, and mistakes ---


def photographs_by_class(folder: Path, *names: str) -> Path:
    """Two noisy pictures a class, grey in the first."""
    values = np.random.default_rng(0)
    for i, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for j in range(2):
            shape = (70, 90) if i == 0 else (70, 90, 3)
            Image.fromarray(values.integers(0, 256, shape, dtype=np.uint8)).save(folder / name / f"{j}.png")
    return folder


SQUEEZE = {"source": "torchvision", "name": "squeezenet1_1"}


@pytest.mark.slow
def test_words_of_folders_are_classes_in_the_order_of_the_model(tmp_path):
    need("torchvision")
    folder = photographs_by_class(tmp_path / "photos", "tench", "goldfish", "toilet tissue")
    data, _ = load_dataset(Data(source="folder", path=str(folder)), 0, view_of(Model(**SQUEEZE)))
    assert sorted(data.targets.tolist()) == [0, 0, 1, 1, 999, 999]
    assert len(data.class_names) == len(set(data.class_names)) == 1000
    assert data.inputs.shape == (6, 3, 224, 224)
    assert "crop_size=[224]" in data.metadata["prepared_by"]


@pytest.mark.slow
def test_words_that_the_model_does_not_know_are_classes_of_the_data(tmp_path):
    need("torchvision")
    folder = photographs_by_class(tmp_path / "photos", "mug", "tench")
    data, _ = load_dataset(Data(source="folder", path=str(folder)), 0, view_of(Model(**SQUEEZE)))
    assert data.class_names == ("mug", "tench")


@pytest.mark.slow
def test_arrays_are_prepared_as_files_of_the_same_pixels(tmp_path):
    need("torchvision")
    folder = photographs_by_class(tmp_path / "photos", "a", "b")
    pixels = np.stack([np.asarray(Image.open(p).convert("RGB")) for p in sorted(folder.rglob("*.png"))])
    np.savez(tmp_path / "x.npz", x=pixels.transpose(0, 3, 1, 2), y=np.array([0, 0, 1, 1]))
    np.savez(tmp_path / "f.npz", x=(pixels / 255).transpose(0, 3, 1, 2), y=np.array([0, 0, 1, 1]))
    view = view_of(Model(**SQUEEZE))
    files, _ = load_dataset(Data(source="folder", path=str(folder)), 0, view)
    bytes_, _ = load_dataset(Data(source="npz", path=str(tmp_path / "x.npz"), value_range=(0, 255)), 0, view)
    floats, _ = load_dataset(Data(source="npz", path=str(tmp_path / "f.npz")), 0, view)
    assert torch.equal(files.inputs, bytes_.inputs)
    assert torch.equal(files.inputs, floats.inputs)


@pytest.mark.slow
def test_a_resize_of_the_users_replaces_the_librarys(tmp_path):
    need("torchvision")
    folder = photographs_by_class(tmp_path / "photos", "tench", "goldfish")
    data, _ = load_dataset(Data(source="folder", path=str(folder), resize=64), 0, view_of(Model(**SQUEEZE)))
    assert data.inputs.shape == (4, 3, 64, 64)
    assert "prepared_by" not in data.metadata
    with pytest.raises(UserError, match=r"data.channels: 1, but the model takes 3"):
        load_dataset(Data(source="folder", path=str(folder), channels=1), 0, view_of(Model(**SQUEEZE)))


@pytest.mark.slow
def test_a_checkpoint_of_the_users_with_another_head_is_kept_whole(tmp_path):
    need("torchvision")
    import torchvision

    network = torchvision.models.squeezenet1_1(num_classes=2)
    torch.save({"state_dict": network.state_dict()}, tmp_path / "mine.pt")
    folder = photographs_by_class(tmp_path / "photos", "mug", "cup")
    model = Model(**SQUEEZE, path=str(tmp_path / "mine.pt"), kwargs={"num_classes": 2})
    data, _ = load_dataset(Data(source="folder", path=str(folder)), 0, view_of(model))
    import_model(model, None, 0, "cpu", tmp_path / "kept")
    (tmp_path / "mine.pt").unlink()
    found = load_classifier(tmp_path / "kept", "cpu", data, trust_of(model))
    transforms = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.transforms()
    paths = sorted(folder.rglob("*.png"))
    with torch.no_grad():
        expected = network.eval()(torch.stack([transforms(Image.open(p).convert("RGB")) for p in paths]))
    same(found.logits(data.inputs), expected)
    assert found.source == "torchvision squeezenet1_1 (mine.pt)"
    assert not found.caveats


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"name": None}, "model.name: is required for model.source: torchvision"),
        ({"name": "squeezenet1_2"}, "Did you mean 'squeezenet1_1'"),
        ({"weights": "IMAGENET1K_V2"}, "model.weights: 'IMAGENET1K_V2' is not weights of squeezenet1_1"),
        ({"path": "nowhere.pt"}, "model.path: nowhere.pt: no such file"),
        ({"weights": "random", "path": "w.pt"}, "one of the two"),
        ({"weights": "random", "kwargs": {"depth": 3}}, "model.kwargs: torchvision's squeezenet1_1 refuses them"),
        ({"weights": "random", "sha256": "ab"}, "model.sha256: is the digest of a file"),
    ],
)
def test_a_mistake_is_one_line(model, words, tmp_path):
    need("torchvision")
    with pytest.raises(UserError) as caught:
        import_model(Model(**(SQUEEZE | model)), None, 0, "cpu", tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_folder_without_all_weights_is_refused_and_random_weights_are_said(tmp_path):
    need("transformers")
    from safetensors.torch import load_file, save_file

    path = Path(small_model("resnet", tmp_path / "saved"))
    weights = load_file(path / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "classifier" not in k}, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"holds no weights for classifier\.1\.bias"):
        import_model(Model(source="huggingface", path=str(path)), None, 0, "cpu", tmp_path / "kept")
    model = Model(source="huggingface", path=str(path), weights="random")
    folder = photographs_by_class(tmp_path / "photos", "ant", "eel")
    data, _ = load_dataset(Data(source="folder", path=str(folder)), 0, view_of(model))
    found = [preview_classifier(model, data, None, "cpu") for _ in range(2)]
    assert found[0].digest == found[1].digest
    assert [caveat.code for caveat in found[0].caveats] == ["random_weights"]


@pytest.mark.parametrize("source", ["torchvision", "timm", "huggingface"])
def test_a_library_that_is_not_installed_says_how_to_install_it(source, tmp_path, monkeypatch):
    for name in ("torchvision", "timm", "transformers"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    (tmp_path / "config.json").write_text("{}")
    place = {"path": str(tmp_path)} if source == "huggingface" else {"name": "resnet18"}
    with pytest.raises(UserError, match=f"{source} is not installed; `windtunnel doctor --install {source}`"):
        view_of(Model(source=source, **place))


def test_what_a_stranger_wrote_in_model_json_fetches_nothing(tmp_path):
    need("torchvision", "timm")
    kept = {"file": "weights.pt", "sha256": "0", "original": "it", "mean": [0.5], "std": [0.5], "random": False}
    record = ModelRecord(source="timm", name="hf-hub:stranger/model", num_classes=2, **kept)
    with pytest.raises(UserError, match="is a place on a hub"):
        loader_of("timm", trust_of(Model()))(record, tmp_path, trust_of(Model()))


def raise_error(error: Exception) -> None:
    raise error


def load_view_and_weights(model: Model, folder: Path) -> None:
    view_of(model)
    import_model(model, None, 0, "cpu", folder)


@pytest.mark.parametrize(
    ("channels", "transform", "words"),
    [
        (0, lambda picture: torch.zeros(0, 8, 8), "0 channels"),
        (3, lambda picture: raise_error(KeyError("resample")), "its transforms of a picture raised KeyError"),
        (1, lambda picture: torch.zeros(1, 0, 8), r"\(1, 0, 8\)"),
        (1, lambda picture: torch.zeros(10**13), "GB of memory"),
    ],
)
def test_transforms_that_make_no_image_are_one_line(channels, transform, words, monkeypatch):
    source = SimpleNamespace(view=lambda: lambda model: View(transform, channels, "odd"))
    monkeypatch.setattr(views, "model_sources", lambda: ("odd",))
    monkeypatch.setattr(views, "model_source", lambda name: source)
    with pytest.raises(UserError, match=words) as caught:
        views.view_of(Model.model_construct(source="odd"))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_model_of_timm_in_a_folder_of_transformers_is_named_as_one(tmp_path):
    need("transformers", "timm")
    content = {**HUB, "architecture": "resnet10t", "num_classes": 10, "pretrained_cfg": {}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="is a model of timm, 'resnet10t'"):
        view_of(Model(source="huggingface", path=str(tmp_path)))


HUB = {
    "model_type": "timm_wrapper",
    "architecture": "hf-hub:stranger/model",
    "architectures": ["TimmWrapperForImageClassification"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**6}, {"num_hidden_layers": "two"}, {"num_hidden_layers": -1}, {"num_hidden_layers": None},
        {"hidden_size": "a"}, {"hidden_size": -32}, {"hidden_size": 10**9}, {"hidden_size": [32]}, {"hidden_size": 0},
        {"image_size": "large"}, {"image_size": -64}, {"image_size": 10**7}, {"patch_size": 0}, {"patch_size": {}},
        {"num_channels": "RGB"}, {"num_channels": -1}, {"num_channels": 10**9}, {"num_attention_heads": 0},
        {"id2label": {"a": "ant"}}, {"id2label": 5}, {"id2label": {"0": ["ant"]}}, {"num_labels": -1}, {"hidden_act": "nowhere"},
        {"model_type": 3}, {"model_type": "nothing"}, {"model_type": ["vit"]},  {"dtype": 5}, HUB,
        HUB | {"architecture": "hf_hub:stranger/model"}, HUB | {"architecture": 3}, HUB | {"model_args": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_configuration_that_cannot_be_is_one_line_without_network(change, tmp_path):
    need("transformers", "timm")
    path = Path(small_model("vit", tmp_path / "saved"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    model = Model(source="huggingface", path=str(path), time_limit=5)
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        load_view_and_weights(model, tmp_path / "kept")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_model_with_code_beside_its_weights_is_read_without_the_code(tmp_path):
    need("transformers")
    path = Path(small_model("vit", tmp_path / "saved"))
    config = json.loads((path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "mine.Config", "AutoModelForImageClassification": "mine.Network"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "mine.py").write_text("raise SystemExit('code of the folder ran')")
    import_model(Model(source="huggingface", path=str(path)), None, 0, "cpu", tmp_path / "kept")
    assert (tmp_path / "kept" / "weights.pt").is_file()


@pytest.mark.parametrize(
    ("build", "name", "expected"),
    [
        (lambda models: models.resnet18(num_classes=10), "best.pt", ("torchvision", "resnet18", 10)),
        (lambda models: models.mobilenet_v3_small(), "m.pt", ("torchvision", "mobilenet_v3_small", None)),
        (lambda models: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)), "resnet18.pt", None),
    ],
)
def test_the_architecture_of_a_state_dict_is_recognised(build, name, expected):
    need("torchvision")
    import torchvision

    found, _ = fitting_architecture(build(torchvision.models).state_dict(), name)
    assert (found and (found.source, found.name, found.classes)) == expected


def test_an_architecture_of_timm_is_recognised():
    need("torchvision", "timm")
    import timm

    state = timm.create_model("test_resnet", num_classes=7).state_dict()
    assert fitting_architecture(state, "test_resnet_epoch3.pt") == (Architecture("timm", "test_resnet", 7), ())


def test_libraries_whose_architectures_were_not_tried_are_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    operators = RuntimeError("operator torchvision::nms does not exist")
    real = architecture.import_module
    monkeypatch.setattr(
        architecture, "import_module", lambda name: real(name) if name != "torchvision" else raise_error(operators)
    )
    state = torch.nn.Linear(2, 2).state_dict()
    assert fitting_architecture(state, "net.pt") == (
        None,
        ("torchvision (does not import: operator torchvision::nms does not exist)", "timm (not installed)"),
    )


def test_architectures_that_time_did_not_suffice_for_are_counted(monkeypatch):
    need("torchvision", "timm")
    monkeypatch.setattr(architecture, "_SECONDS", -1)
    monkeypatch.setattr(architecture, "_torchvision", lambda size: (["resnet18", "resnet34"], None))
    state = torch.nn.Linear(2, 2).state_dict()
    assert fitting_architecture(state, "net.pt")[1] == ("2 of 2 architectures of torchvision (-1 s were over)",)
