"""Models of torchvision, timm and Hugging Face give the logits of the library's own pipeline, and bring their class names."""

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.inputs.models.libraries import need
from windtunnel.inputs.data.load import load_dataset
from windtunnel.inputs.models.load import preview_classifier
from windtunnel.inputs.models.views import view_of
from windtunnel.params.data import Data
from windtunnel.params.model import Model

# All twelve, and 200 images, where WINDTUNNEL_ALL_MODELS is set; else the small ones.
ALL = bool(os.environ.get("WINDTUNNEL_ALL_MODELS"))
TORCHVISION = ["squeezenet1_1", "mobilenet_v3_small"] + (
    ["resnet18", "googlenet", "densenet121", "efficientnet_b0", "vit_b_32"] if ALL else []
)
TIMM = ["resnet10t", "test_vit"] + (["mobilenetv3_small_050", "convnext_atto", "deit_tiny_patch16_224"] if ALL else [])
IMAGES = 200 if ALL else 4


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """Real photographs: those that foolbox ships, cut and scaled to other sizes and shapes."""
    import foolbox

    sources = sorted((Path(foolbox.__file__).parent / "data").glob("imagenet_*.jpg"))
    folder = tmp_path_factory.mktemp("photographs")
    for i in range(IMAGES):
        image = Image.open(sources[i % len(sources)]).convert("RGB")
        width, height = 200 + 37 * i % 300, 180 + 53 * i % 300
        image.resize((width, height)).rotate(i // len(sources) * 7).save(folder / f"{i:03d}.png")
    return folder


def prepared(model: Model, folder: Path):
    return load_dataset(Data(source="folder", path=str(folder), labels="none"), 0, view_of(model))[0]


def pictures(folder: Path) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sorted(folder.iterdir())]


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert float((ours - theirs).abs().max()) <= 1e-5, float((ours - theirs).abs().max())


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
