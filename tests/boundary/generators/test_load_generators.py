"""Training, keeping and bringing generative models; every mistake ends in one line."""

from pathlib import Path

import pytest
import torch
from torch.distributions import MultivariateNormal

from windtunnel.assessments.latent.assess import encode
from windtunnel.boundary.generators.load import check_generators, load_generators, make_generators
from windtunnel.boundary.generators.quality import Quality, frechet_distance, quality
from windtunnel.boundary.generators.training import train_generators
from windtunnel.core.errors import UserError
from windtunnel.params.latent import Encoding, GeneratorRecipe, Generators
from windtunnel.records.files import file_digest

CPU = torch.device("cpu")


def own(name, **changes):
    return Generators(source="function", function=f"tests.boundary.generators.own:{name}", **changes)


@pytest.mark.parametrize("algorithm", ["wgan-gp", "vae", "sphere"])
def test_training_is_deterministic_kept_and_read_back(algorithm, digits, tmp_path):
    assessed, train = digits
    recipe = GeneratorRecipe(algorithm=algorithm, steps=3, latent_dim=6)
    for name in ("one", "two"):
        make_generators(Generators(source="train", train=recipe), train, 0, "cpu", tmp_path / name)
    assert file_digest(tmp_path / "one" / "weights.pt") == file_digest(tmp_path / "two" / "weights.pt")
    loaded = load_generators(tmp_path / "one", CPU, assessed)
    codes, classes = torch.randn(20, 6), torch.arange(20) % 10
    trained = train_generators(recipe, train, 0, CPU)
    assert torch.equal(loaded.decode(codes, classes), trained.decode(codes, classes))
    other = train_generators(recipe, train, 1, CPU)
    assert not torch.equal(trained.decode(codes, classes), other.decode(codes, classes))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "steps"), [("wgan-gp", 100), ("vae", 200), ("sphere", 200)])
def test_generated_digits_are_classified_as_their_class(algorithm, steps, digits, mlp_subject):
    model = train_generators(GeneratorRecipe(algorithm=algorithm, steps=steps), digits[1], 0, CPU)
    classes = torch.arange(500) % 10
    with torch.no_grad():
        images = model.decode(torch.randn(500, 16, generator=torch.Generator().manual_seed(0)), classes)
    assert (mlp_subject.classifier.predict(images) == classes).float().mean() > 0.8


def test_a_range_of_minus_one_to_one_is_mapped_to_the_models(digits, tmp_path):
    make_generators(own("WithEncoder"), None, 0, "cpu", tmp_path)
    found = load_generators(tmp_path, CPU, digits[0], own("WithEncoder"))
    codes, classes = torch.randn(30, 5), torch.arange(30) % 10
    images = found.decode(codes, classes)
    assert images.min() >= 0
    assert images.max() <= 1
    assert torch.allclose(images * 2 - 1, found.model.decode(codes, classes), atol=1e-6)
    assert torch.allclose(found.encode(images, classes), found.model.encode(images * 2 - 1, classes), atol=1e-6)


def test_weights_of_the_users_are_copied_and_loaded(digits, tmp_path):
    from tests.boundary.generators.own import Own

    model = Own()
    torch.save(model.state_dict(), tmp_path / "mine.pt")
    block = own("Own", path=str(tmp_path / "mine.pt"))
    check_generators(block, None, "cpu", digits[0])
    make_generators(block, None, 0, "cpu", tmp_path / "kept")
    (tmp_path / "mine.pt").unlink()
    found = load_generators(tmp_path / "kept", CPU, digits[0], block)
    assert torch.equal(found.model.layer.weight, model.layer.weight)
    assert not found.has_encoder


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (own("WideRange"), r"gives images in \[-.*outside its range \[0, 1\].*generators.value_range"),
        (own("FewClasses"), "has no class 8, 9; the data has 10"),
        (own("OtherDimension"), "does not decode .*latent_dim is 9"),
        (own("NarrowEncoder"), r"encodes one image to shape \(1, 3\); its latent_dim is 5"),
        (own("NotANumber"), "decodes class 7 to NaN"),
        (own("Own", kwargs={"side": 6}), r"to shape \(40, 1, 6, 6\); the model takes 1x8x8"),
        (own("NoDecoder"), "without decode"),
        (own("Onw"), "Did you mean 'Own'"),
        (own("fails"), "raised RuntimeError: .*own.py, line 53: no such checkpoint"),
        (own("Own", path="nowhere.pt"), "generators.path: nowhere.pt: no such file"),
        (Generators(source="function"), "generators.function: is required"),
        (Generators(source="train"), "data.train_path"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(block, says, digits):
    with pytest.raises(UserError, match=says) as caught:
        check_generators(block, None, "cpu", digits[0])
    assert "\n" not in str(caught.value)


def test_a_class_without_training_samples_is_named(digits):
    train = digits[1].subset((digits[1].targets != 4).nonzero().flatten())
    with pytest.raises(UserError, match="none of 4"):
        train_generators(GeneratorRecipe(steps=1), train, 0, CPU)


def test_weights_that_do_not_fit_are_refused(digits, tmp_path):
    torch.save({"other": torch.zeros(1)}, tmp_path / "mine.pt")
    with pytest.raises(UserError, match="does not load"):
        check_generators(own("Own", path=str(tmp_path / "mine.pt")), None, "cpu", digits[0])


def test_without_generators_there_is_nothing_and_it_is_no_error(digits, tmp_path: Path):
    make_generators(Generators(), None, 0, "cpu", tmp_path)
    assert load_generators(tmp_path, CPU, digits[0]) is None


def test_searched_codes_reconstruct_and_do_not_depend_on_their_neighbours(digits, tmp_path):
    make_generators(own("Own"), None, 0, "cpu", tmp_path)
    found = load_generators(tmp_path, CPU, digits[0], own("Own"))
    classes = torch.zeros(6, dtype=torch.int64)
    wanted = found.decode(torch.randn(6, 5), classes)
    settings = Encoding(steps=150)
    codes = encode(found, wanted, classes, settings, torch.Generator().manual_seed(0))
    errors = (found.decode(codes, classes) - wanted).square().flatten(1).mean(1)
    assert errors.max() < 1e-4
    first = encode(found, wanted[:1], classes[:1], settings, torch.Generator().manual_seed(0))
    assert torch.allclose(first, codes[:1], atol=1e-2)


def test_of_the_restarts_of_a_code_search_the_best_is_kept(digits, tmp_path):
    make_generators(own("Own"), None, 0, "cpu", tmp_path)
    found = load_generators(tmp_path, CPU, digits[0], own("Own"))
    classes = torch.zeros(40, dtype=torch.int64)
    wanted = found.decode(torch.randn(40, 5), classes)
    errors = []
    for restarts in (1, 10):
        settings = Encoding(steps=1, restarts=restarts)
        codes = encode(found, wanted, classes, settings, torch.Generator().manual_seed(0))
        errors.append(float((found.decode(codes, classes) - wanted).square().mean()))
    assert errors[1] < 0.7 * errors[0]


def test_the_frechet_distance_of_gaussians_is_known():
    covariance = torch.diag(torch.tensor([1.0, 2.0, 0.5]))
    torch.manual_seed(0)
    a = MultivariateNormal(torch.zeros(3), covariance).sample((20000,))
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(a, a + torch.tensor([1.0, 0.0, 2.0])) == pytest.approx(5, rel=1e-4)
    # Equal means and diagonal covariances: the sum of squared differences of the deviations.
    assert frechet_distance(a, 3 * a) == pytest.approx(4 * float(a.var(0).sum()), rel=0.01)


@pytest.mark.slow
def test_noise_is_farther_from_the_data_than_a_trained_model(digits, tmp_path):
    assessed, train = digits
    distances = []
    for steps in (1, 200):
        recipe = GeneratorRecipe(steps=steps)
        make_generators(Generators(source="train", train=recipe), train, 0, "cpu", tmp_path)
        distances.append(quality(load_generators(tmp_path, CPU, assessed), train, 0, CPU).frechet_distance)
    assert distances[1] < distances[0] / 2
    assert quality(load_generators(tmp_path, CPU, assessed), None, 0, CPU) == Quality()
