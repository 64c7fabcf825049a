"""`check` recognises what is wrong between data and model, and suspects nothing of a sound pair."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from rich.console import Console
from ruamel.yaml import YAML
from torch import Tensor, nn

from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.boundary.models.of_libraries import Normalised
from windtunnel.boundary.models.preprocess import Preprocessed, as_yaml, joined, steps_of
from windtunnel.cli.compatibility import PICTURE, show_what_it_sees
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.input_conventions.corrections import (
    _Tried,
    better,
    calibrated_losses,
    corrections,
    expectations,
    invisible_channels,
    own_size_suspicion,
    suspicion,
)
from windtunnel.evaluation.input_conventions.first_layer import twice_normalised
from windtunnel.evaluation.input_conventions.look import MEASURED, chosen, rows
from windtunnel.params.data import Data
from windtunnel.params.model import Model, Preprocess

IMAGENET_GREY, HALF, MNIST = ((0.449,), (0.226,)), ((0.5,), (0.5,)), ((0.1307,), (0.3081,))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Expects(nn.Module):
    """A network that was trained on normalised inputs: of one that takes [0, 1], what comes to the same."""

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.network = network
        self.scale = nn.Conv2d(len(mean), len(mean), 1, groups=len(mean))
        with torch.no_grad():
            self.scale.weight.copy_(torch.tensor(std).view(-1, 1, 1, 1))
            self.scale.bias.copy_(torch.tensor(mean))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.scale(x))


class RedChannel(nn.Module):
    """A network of one channel for colour images, in the first of which its image is."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x[:, :1])


@pytest.fixture(scope="module", params=["clntrained", "advtrained"])
def reference(request, shared) -> tuple[Classifier, Dataset]:
    """A reference LeNet5 with its real weights, and 1,000 images of MNIST."""
    images, labels = (str(shared / f"data/mnist/t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    samples = {"n": 1000, "selection": "stratified"}
    data, _ = load_dataset(Data(source="idx", path=images, labels=labels, samples=samples), 0)
    path = str(shared / f"data/models/mnist_lenet5_{request.param}.pt")
    factory = "windtunnel.boundary.models.architectures:lenet5"
    return preview_classifier(Model(source="state_dict", path=path, factory=factory), data, None, "cpu"), data


def of(classifier: Classifier, module: nn.Module, data: Dataset) -> Subject:
    made = replace(classifier, module=module.eval(), input_shape=tuple(data.inputs.shape[1:]))
    return subject_of(made, data)


def suspected(subject: Subject, most: int = 160) -> str:
    """As `suspicion_of`, with as many samples on a slow machine as on any."""
    for samples in (chosen(subject.dataset), chosen(subject.dataset, most)):
        if found := suspicion(subject.classifier, subject.dataset.subset(samples), subject.clean_logits[samples]):
            return found.line
    return ""


@pytest.mark.slow
def test_a_sound_model_is_suspected_of_nothing(reference):
    classifier, data = reference
    assert suspected(subject_of(classifier, data), len(data)) == ""
    assert twice_normalised(classifier) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "std"), [IMAGENET_GREY, HALF, MNIST])
def test_a_missing_normalisation_is_recognised(reference, mean, std):
    classifier, data = reference
    line = suspected(of(classifier, Expects(classifier.module, mean, std), data), len(data))
    assert "is normalisation missing inside the model?" in line
    assert line.startswith("accuracy ")


@pytest.mark.parametrize(("mean", "std"), [IMAGENET_GREY, HALF, MNIST])
def test_two_normalisations_in_a_row_are_recognised(reference, mean, std):
    classifier, data = reference
    whole = Normalised(Expects(classifier.module, mean, std), mean, std)
    assert twice_normalised(of(classifier, whole, data).classifier) == ""
    twice = of(classifier, Normalised(whole, mean, std), data)
    assert "normalisation too many" in twice_normalised(twice.classifier)


@pytest.mark.parametrize("form", ["export", "functional", "flat"])
def test_two_normalisations_are_read_from_any_form_of_a_torch_model(reference, form):
    """Also where no module holds the weights, as in a torch.export program, and where images are flattened first."""
    classifier, data = reference
    flat = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    inner = flat if form == "flat" else classifier.module
    twice = Normalised(Normalised(inner, *MNIST), *MNIST).eval()
    once = Normalised(inner, *MNIST).eval()
    if form == "export":
        batch = ({0: torch.export.Dim("n")},)
        once, twice = (torch.export.export(m, (data.inputs[:2],), dynamic_shapes=batch).module() for m in (once, twice))
    if form == "functional":
        kernel = torch.randn(3, 1, 3, 3)
        once, twice = (Normalised(Functional(kernel, times), *MNIST).eval() for times in (0, 1))
    found = [twice_normalised(replace(classifier, module=module)) for module in (once, twice)]
    assert found[0] == ""
    assert "normalisation too many" in found[1]


class Functional(nn.Module):
    """A convolution without a module of its own, after `times` normalisations."""

    def __init__(self, kernel: Tensor, times: int) -> None:
        super().__init__()
        self.kernel, self.times = kernel, times

    def forward(self, x: Tensor) -> Tensor:
        ((mean,), (std,)) = MNIST
        for _ in range(self.times):
            x = (x - mean) / std
        return nn.functional.conv2d(x, self.kernel).flatten(1)[:, :10]


def coloured(data: Dataset, channel: int) -> Dataset:
    inputs = torch.zeros(len(data), 3, *data.inputs.shape[2:])
    inputs[:, channel] = data.inputs[:, 0]
    return replace(data, inputs=inputs)


@pytest.mark.slow
def test_swapped_channels_are_recognised(reference):
    classifier, data = reference
    module = RedChannel(classifier.module)
    assert suspected(of(classifier, module, coloured(data, 0))) == ""
    assert "the channels were the other way round" in suspected(of(classifier, module, coloured(data, 2)))


@pytest.mark.slow
def test_a_missing_normalisation_of_colour_images_is_recognised_as_imagenets(reference):
    classifier, data = reference
    module = Expects(RedChannel(classifier.module), *IMAGENET)
    line = suspected(of(classifier, module, coloured(data, 0)))
    assert "normalised with ImageNet's mean" in line


@pytest.mark.slow
def test_inputs_normalised_in_the_data_and_in_the_model_are_recognised(reference):
    classifier, data = reference
    (mean,), (std,) = IMAGENET_GREY
    given = replace(data, inputs=(data.inputs - mean) / std, value_range=(-2.0, 2.5))
    whole = Normalised(nn.Sequential(Expects(classifier.module, (mean,), (std,))), (mean,), (std,))
    subject = of(classifier, whole, given)
    accuracy = float(subject.clean_correct.float().mean())
    line = suspected(subject)
    assert "are the inputs normalised twice" in line or (line == "" and accuracy > 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x / 255, "inputs spanned 0 to 255"),
        (lambda x: 1 - x, "black and white changed places"),
        (lambda x: x.transpose(2, 3), "rows and columns changed places"),
    ],
)
def test_a_wrong_scale_and_wrong_layouts_are_recognised(reference, wrong, words):
    classifier, data = reference
    assert words in suspected(subject_of(classifier, replace(data, inputs=wrong(data.inputs).contiguous())))


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([*range(1, 10), 0], "one higher"),
        ([3, 1, 4, 0, 5, 9, 2, 6, 8, 7], "in another order"),
        (list(range(10))[::-1], "the reverse order"),
    ],
)
def test_a_wrong_order_of_classes_is_recognised_and_costs_no_query(reference, order, words):
    classifier, data = reference
    subject = subject_of(classifier, replace(data, targets=torch.tensor(order)[data.targets]))
    few = chosen(data)
    found = suspicion(None, subject.dataset.subset(few), subject.clean_logits[few])
    assert found is not None
    assert words in found.words


def test_the_loss_of_surer_logits_is_the_same(reference):
    """A correction that only scales the logits, up or down, brings nothing back."""
    classifier, data = reference
    logits = classifier.logits(data.inputs[:200])
    losses = [calibrated_losses(scale * logits, data.targets[:200]).mean() for scale in (0.5, 1, 3)]
    assert max(losses) - min(losses) < 1e-5


def test_a_gain_by_chance_is_not_believed():
    given = torch.zeros(50, dtype=torch.bool)
    given[:40] = True
    lucky = given.clone()
    lucky[40:43] = True
    assert not better(given, lucky, 25)
    assert better(given, torch.ones(50, dtype=torch.bool), 1)


# --- lines to paste ---


class Templates(nn.Module):
    """Nearest of ten colour pictures, behind the inverse of a preprocessing; `flat`: of vectors in that layout."""

    def __init__(self, templates: Tensor, expects: Preprocess, *, flat: bool = False) -> None:
        super().__init__()
        self.templates, self.steps, self.flat = templates, steps_of(expects, templates.shape[1:]), flat

    def forward(self, x: Tensor) -> Tensor:
        if self.flat:
            x = x.flatten(1).view(-1, 6, 6, 3) if self.steps.channels_last else x.flatten(1).view(-1, 3, 6, 6)
        x = x.permute(0, 3, 1, 2) if self.steps.channels_last else x
        x = (x - torch.tensor(self.steps.shift).view(-1, 1, 1)) / torch.tensor(self.steps.scale).view(-1, 1, 1)
        x = (x.flip(1) if self.steps.mixing else x).flatten(1)
        t = self.templates.flatten(1)
        return x @ t.T - t.square().sum(1) / 2


def pictures(colourful: bool = True) -> tuple[Tensor, Dataset]:
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(10, 3 if colourful else 1, 6, 6, generator=generator).expand(10, 3, 6, 6)
    base = base * torch.linspace(0.3, 1, 10).view(-1, 1, 1, 1)
    templates = (base + 0.002 * torch.rand(10, 3, 6, 6, generator=generator)).clamp(0, 1)
    targets = torch.arange(200) % 10
    noise = 0.2 * torch.randn(200, 3, 6, 6, generator=generator)
    names = tuple(map(str, range(10)))
    inputs = (templates[targets] + noise).clamp(0, 1)
    return templates, Dataset(inputs, targets, tuple(f"p{i}" for i in range(200)), names)


def test_twenty_pictures_suffice_where_a_common_normalisation_rights_eleven(monkeypatch):
    """45 % as given and 100 % if normalised, as of ResNet-20 on foolbox's 20 CIFAR-10 pictures."""
    _, data = pictures()
    data = data.subset(torch.arange(20))
    logits = torch.nn.functional.one_hot(data.targets, 10).float()
    logits[9:] = logits[9:].roll(1, 1)
    right = torch.ones(20, dtype=torch.bool)
    candidates = list(corrections(data))
    tried = [_Tried(c.words, right & (i == 0), None, c) for i, c in enumerate(candidates)]
    monkeypatch.setattr("windtunnel.evaluation.input_conventions.corrections._asked", lambda *_: tried)
    found = suspicion(True, data, logits)
    assert (found.given, found.corrected) == (pytest.approx(0.45), 1.0)
    assert found.preprocess.mean == IMAGENET[0]


@pytest.mark.parametrize(
    ("expects", "flat"),
    [
        ({"range": (0, 255)}, False),
        ({"range": (-1, 1)}, False),
        ({"mean": IMAGENET[0], "std": IMAGENET[1]}, False),
        ({"range": (0, 255), "channels": "BGR"}, False),
        ({"range": (0, 255), "mean": (103.939, 116.779, 123.68), "channels": "BGR"}, False),
        ({"layout": "NHWC"}, True),
        ({"layout": "NHWC", "range": (-1, 1)}, True),
    ],
)
def test_the_lines_to_paste_bring_the_accuracy_back(expects, flat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    templates, data = pictures()
    module = Templates(templates, Preprocess(**expects), flat=flat).eval()
    classifier = Classifier(module, 10, (3, 6, 6), frozenset(), "digest", "templates", torch.device("cpu"))
    cure = suspicion(classifier, data, classifier.logits(data.inputs)).preprocess
    steps = steps_of(cure, (3, 6, 6))
    inner = Templates(templates, Preprocess()).eval()
    prepared = (
        Preprocessed(nn.Flatten(1), steps)(data.inputs) if flat else Preprocessed(nn.Identity(), steps)(data.inputs)
    )
    right, best = (m(x).argmax(1) == data.targets for m, x in ((module, prepared), (inner, data.inputs)))
    assert float(right.float().mean()) >= float(best.float().mean()) - 0.02
    seen = show_what_it_sees(subject_of(classifier, data), Console(quiet=True), model=Model(source="export"))
    assert seen.proposal[:2] == ["model:", f"  preprocess: {as_yaml(cure)}"]
    assert Preprocess(**YAML(typ="safe").load(as_yaml(cure))) == cure


def test_every_convention_of_values_is_tried_with_channels_swapped_too():
    names = {correction.name for correction in corrections(pictures()[1])}
    assert names >= {f"{correction.name} in BGR" for correction in expectations((3, 6, 6))}


def test_constants_that_the_samples_cannot_tell_apart_are_named_together():
    templates, data = pictures()
    expects = Preprocess(mean=IMAGENET[0], std=IMAGENET[1])
    module = Templates(templates, expects).eval()
    classifier = Classifier(module, 10, (3, 6, 6), frozenset(), "digest", "templates", torch.device("cpu"))
    few = data.subset(torch.arange(40))
    found = suspicion(classifier, few, classifier.logits(few.inputs))
    assert {found.preprocess.mean, *(p.mean for _, p in found.rivals)} >= {IMAGENET[0], (0.4914, 0.4822, 0.4465)}
    assert "by more than chance" in found.line


def test_an_order_of_channels_that_costs_nothing_is_said_to_be_invisible():
    for colourful in (True, False):
        templates, data = pictures(colourful)
        module = Templates(templates, Preprocess()).eval()
        classifier = Classifier(module, 10, (3, 6, 6), frozenset(), "digest", "templates", torch.device("cpu"))
        assert ("as good as invisible" in invisible_channels(classifier, data, None)) is not colourful


class Corner(nn.Module):
    """A network that looks at the first 6 x 6 pixels: trained on images of that size, lost on larger ones."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x[..., :6, :6])


def enlarged(data: Dataset) -> Dataset:
    return replace(data, inputs=data.inputs.repeat_interleave(4, 2).repeat_interleave(4, 3))


def test_images_that_the_library_resized_are_tried_at_their_own_size(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    templates, data = pictures()
    network = Corner(Templates(templates, Preprocess())).eval()
    classifier = Classifier(network, 10, (3, 24, 24), frozenset(), "digest", "corner", torch.device("cpu"))
    assert own_size_suspicion(classifier, enlarged(data), data).size == (6, 6)
    assert own_size_suspicion(classifier, data, data) is None
    assert own_size_suspicion(classifier, data, enlarged(data)) is None

    def reload(n: int, at_own_size: bool) -> Dataset:
        few = data.subset(chosen(data, n))
        return few if at_own_size else enlarged(few)

    subject = subject_of(classifier, enlarged(data))
    seen = show_what_it_sees(subject, Console(width=200), reload, Model(source="torchvision", path="weights.pt"))
    assert seen.proposal == ["data:", "  resize: [6, 6]"]
    assert "images kept their own size of 6x6" in seen.suspicions[0]
    assert "own size" in capsys.readouterr().out


def test_an_accuracy_that_guessing_reaches_is_a_warning(tmp_path, monkeypatch, digits_subject, capsys):
    monkeypatch.chdir(tmp_path)
    lost = nn.Sequential(digits_subject.classifier.module, nn.Linear(10, 10, bias=False))
    nn.init.zeros_(lost[1].weight)
    sound, data = digits_subject.classifier.module, digits_subject.dataset
    right = digits_subject.clean_correct.nonzero().flatten()
    for module, samples, is_guess in ((lost, data, True), (sound, data, False), (sound, data.subset(right[:1]), False)):
        show_what_it_sees(of(digits_subject.classifier, module, samples), Console(width=200))
        assert ("as by guessing among 10 classes" in capsys.readouterr().out) is is_guess


@pytest.mark.parametrize("second", [{"range": (-1, 1)}, {"channels": "BGR", "mean": (1, 2, 3), "std": (4, 5, 6)}])
@pytest.mark.parametrize("first", [{"range": (0, 255)}, {"mean": (0.1, 0.2, 0.3), "channels": "BGR"}])
def test_two_preprocessings_are_joined_into_one(first, second):
    x = torch.rand(2, 3, 4, 4)
    one, two = Preprocess(**first), Preprocess(**second)
    apply = [Preprocessed(nn.Identity(), steps_of(p, (3, 4, 4))) for p in (one, two, joined(one, two, (3, 4, 4)))]
    assert torch.allclose(apply[2](x), apply[1](apply[0](x)), atol=0.05, rtol=1e-3)


# --- the table and the picture ---


def test_check_shows_a_table_a_picture_and_the_accuracy(tmp_path, monkeypatch, digits_subject, capsys):
    monkeypatch.chdir(tmp_path)
    show_what_it_sees(digits_subject, Console(width=160))
    shown = capsys.readouterr().out
    assert "label" in shown
    assert f"on {MEASURED} samples; inputs span 0 to 1" in shown
    assert digits_subject.dataset.ids[0].split("-")[0] in shown
    with Image.open(PICTURE) as picture:
        assert picture.width > 5 * 224


def test_the_rows_are_what_the_model_says(digits_subject):
    data = digits_subject.dataset
    for row in rows(data, digits_subject.clean_logits):
        i = data.ids.index(row.name)
        assert row.prediction == data.class_names[int(digits_subject.clean_predictions[i])]
        assert row.label == data.class_names[int(data.targets[i])]
        assert row.confidence == pytest.approx(float(digits_subject.clean_logits[i].softmax(0).max()))


def test_a_predict_function_is_asked_nothing_more(tmp_path, monkeypatch, digits_subject):
    monkeypatch.chdir(tmp_path)
    network = digits_subject.classifier.module
    module = PredictFunction(lambda batch: network(torch.from_numpy(batch)).softmax(1).numpy())
    subject = subject_of(replace(digits_subject.classifier, module=module), digits_subject.dataset)
    before = module.queries_asked
    show_what_it_sees(subject, Console(quiet=True))
    assert module.queries_asked == before
