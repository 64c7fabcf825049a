"""Training recipes: augmented images, noise on top of them, early stopping, and the user's own architecture."""

from pathlib import Path

import pytest
import torch
from torch import nn

from windtunnel.boundary.models.load import import_model, load_classifier, preview_classifier
from windtunnel.boundary.models.training import Best, affine, augment, erase, train_classifier
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.model import Model, Recipe

CPU = torch.device("cpu")
FACTORY = """
from torch import nn

def net(hidden=24):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))

def text():
    return "no module"
"""


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_augmentation_keeps_shape_and_range_and_changes_every_image_in_its_own_way():
    images = torch.rand(64, 3, 16, 12, generator=seeded())
    made = augment(images, seeded(1))
    assert made.shape == images.shape
    assert made.min() >= 0
    assert made.max() <= 1 + 1e-6
    assert (made != images).flatten(1).any(1).all()
    assert torch.equal(made, augment(images, seeded(1)))
    same = affine(torch.ones(8, 1, 16, 16) * images[:1, :1].mean(), seeded(2))
    assert len({tuple(row.flatten().tolist()) for row in same}) == 8


def test_affine_moves_a_point_by_at_most_a_tenth_of_the_side_and_what_rotation_and_scale_add():
    images = torch.zeros(200, 1, 41, 41)
    images[:, :, 20, 20] = 1
    moved = affine(images, seeded())
    place = moved.flatten(1).argmax(1)
    rows, columns = place // 41 - 20, place % 41 - 20
    assert rows.abs().max() <= 6
    assert columns.abs().max() <= 6
    assert rows.unique().numel() > 5


def test_erasing_fills_one_rectangle_of_half_of_the_images_with_their_mean():
    images = torch.rand(400, 1, 20, 20, generator=seeded())
    erased = erase(images, seeded(1))
    changed = erased != images
    share = changed.flatten(1).any(1).double().mean()
    assert 0.4 < share < 0.6
    assert changed.any(1).any(2).sum(1).max() <= 8
    hit = int(changed.flatten(1).any(1).nonzero()[0])
    assert erased[hit][changed[hit]].unique().tolist() == pytest.approx([float(images[hit].mean())])


@pytest.mark.parametrize("recipe", ["augmentation", "augmentation+noise"])
def test_the_recipes_train_and_repeat(recipe, digits):
    _, train = digits
    few = train.subset(torch.arange(200))
    one, two = (train_classifier(Recipe(architecture="mlp", recipe=recipe, epochs=2), few, 0, CPU) for _ in range(2))
    plain = train_classifier(Recipe(architecture="mlp", epochs=2), few, 0, CPU)
    for a, b, c in zip(one.parameters(), two.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_images_are_augmented_and_tables_are_not():
    table = Dataset(torch.rand(20, 4), torch.zeros(20).long(), tuple(map(str, range(20))), ("a", "b"))
    with pytest.raises(UserError, match=r"model\.train\.recipe: augmentation changes images"):
        train_classifier(Recipe(architecture="mlp", recipe="augmentation"), table, 0, CPU)


def test_best_keeps_the_weights_of_the_smallest_loss_and_ends_after_patience():
    module, best = nn.Linear(1, 1), Best(2)
    over = []
    for value, loss in ((1.0, 0.5), (2.0, 0.3), (3.0, 0.4), (4.0, 0.35)):
        module.weight.data.fill_(value)
        over.append(best.is_over(module, loss))
    assert over == [False, False, False, True]
    best.restore(module)
    assert float(module.weight) == 2.0


def test_early_stopping_ends_before_the_epochs_are_over_and_is_recorded(digits, monkeypatch):
    from windtunnel.boundary.models import training

    _, train = digits
    losses = []
    real = training._loss
    monkeypatch.setattr(training, "_loss", lambda *a: losses.append(real(*a)) or losses[-1])
    recipe = Recipe(architecture="mlp", epochs=60, patience=2, learning_rate=0.05)
    train_classifier(recipe, train.subset(torch.arange(300)), 0, CPU)
    assert 3 <= len(losses) < 60
    assert min(losses) < losses[-1]
    assert recipe.used()["patience"] == 2
    assert "patience" not in Recipe().used()
    assert "noise_sigma" in Recipe(recipe="augmentation+noise").used()
    assert "noise_sigma" not in Recipe(recipe="augmentation").used()


def test_an_architecture_of_the_users_own_is_trained_and_loaded_again(digits, tmp_path, monkeypatch):
    assessed, train = digits
    monkeypatch.chdir(tmp_path)
    Path("my_nets.py").write_text(FACTORY)
    model = Model(source="train", train=Recipe(epochs=6), factory="my_nets:net", kwargs={"hidden": 12})
    assert preview_classifier(model, assessed, train, "cpu").module[1].out_features == 12
    import_model(model, train, 0, "cpu", tmp_path / "kept")
    loaded = load_classifier(tmp_path / "kept", "cpu", assessed, trust_of(model))
    assert isinstance(loaded.module[2], nn.Tanh)
    assert float((loaded.predict(assessed.inputs) == assessed.targets).double().mean()) > 0.5
    with pytest.raises(UserError, match="never taken from a file"):
        load_classifier(tmp_path / "kept", "cpu", assessed)
    with pytest.raises(UserError, match=r"model\.factory: my_nets:text returned a str, not a torch\.nn\.Module"):
        import_model(
            model.model_copy(update={"factory": "my_nets:text", "kwargs": {}}), train, 0, "cpu", tmp_path / "no"
        )
