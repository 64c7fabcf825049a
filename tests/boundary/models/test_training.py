"""What the recipes make: accurate, repeatable, and where they say so robust."""

import pytest
import torch

from windtunnel.boundary.models.architectures import ARCHITECTURES, cnn
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.errors import UserError
from windtunnel.params.model import Recipe

CPU = torch.device("cpu")


def test_the_standard_recipe_reaches_97_percent_on_digits(digits):
    assessed, train = digits
    module = train_classifier(Recipe(), train, 0, CPU)
    assert not module.training
    assert (module(assessed.inputs).argmax(1) == assessed.targets).float().mean() >= 0.97


@pytest.mark.parametrize("recipe", ["standard", "noise", "adversarial"])
def test_a_seed_decides_every_weight_and_leaves_the_global_stream_alone(digits, recipe):
    _, train = digits
    small = train.subset(torch.arange(200))
    settings = Recipe(architecture="mlp", recipe=recipe, epochs=2)
    torch.manual_seed(1)
    a = train_classifier(settings, small, 7, CPU)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    b, c = train_classifier(settings, small, 7, CPU), train_classifier(settings, small, 8, CPU)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(a.parameters(), c.parameters(), strict=True))


def test_adversarial_training_keeps_more_samples_right_under_fgsm(digits_subject, robust_subject):
    def robust_accuracy(subject):
        x = subject.dataset.inputs.clone().requires_grad_()
        torch.nn.functional.cross_entropy(subject.classifier.module(x), subject.dataset.targets).backward()
        attacked = (x + 0.1 * x.grad.sign()).clamp(0, 1).detach()
        return float((subject.classifier.predict(attacked) == subject.dataset.targets).float().mean())

    assert robust_accuracy(robust_subject) > robust_accuracy(digits_subject) + 0.05


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("shape", [(1, 3, 3), (3, 5, 9), (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 64)])
def test_every_architecture_takes_every_image_shape(name, shape):
    assert ARCHITECTURES[name](shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_cnn_has_its_documented_size():
    assert sum(p.numel() for p in cnn((1, 28, 28), 10).parameters()) == 166_406


@pytest.mark.parametrize("shape", [(12,), (1, 2, 8)])
def test_the_cnn_refuses_what_it_cannot_convolve(shape):
    with pytest.raises(UserError, match="mlp takes any"):
        cnn(shape, 3)
