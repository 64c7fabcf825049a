"""Certificates of transformations against dense samples: no point of a region leaves its envelope or breaks a certified sample."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import windtunnel
from benchmarks.transformations import REGIONS, contradictions, random_network, random_subject
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.transformations import convex_block
from windtunnel.assessments.verification.transformations.affine_forms import AffineForm
from windtunnel.assessments.verification.transformations.certify import _SampleCertifier
from windtunnel.assessments.verification.transformations.envelopes import MARGIN, envelope
from windtunnel.assessments.verification.transformations.form_network import FormNetwork
from windtunnel.assessments.verification.transformations.patches import PatchParts
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.transformations import Transformation, transformation_of
from windtunnel.core.transformed import transform, unit_tensors
from windtunnel.params.verification import ParameterSplits
from windtunnel.records.artifacts import Artifacts

GREY = ("rotation=20", "translation=1.5", "scale=0.2", "shear=0.3", "brightness=0.3", "contrast=0.4", "gamma=0.5", "blur=1.5",
        "rotation=10,blur=0.8", "rotation=40,border=reflect", "rotation=40,border=edge", "scale=0.9,border=reflect",
        "translation=9,border=reflect", "translation=9,shear=0.4,border=edge", "rotation=20,gamma=0.3,border=edge",
        "rotation=9,scale=0.1,shear=0.2,brightness=0.1", "rotation=30,gamma=0.3", "translation=2,contrast=0.3")  # fmt: skip
COLOUR = ("saturation=0.6", "hue=40", "rotation=10,hue=20", "translation=1,saturation=0.4,contrast=0.2")


def _region(text: str) -> Transformation:
    transformation = transformation_of(Norm(text))
    assert transformation is not None
    return transformation


def _values(form: AffineForm, at: Tensor) -> Tensor:
    """Values (n, ...) of box 0 of a form at the points `at` (n, P) of its symbols, without the error.

    A form of a translation has one symbol more, the product of its two, which come first here.
    """
    if form.slopes.shape[1] > at.shape[1]:
        at = torch.cat([at, at[:, :1] * at[:, 1:2]], 1)
    return form.centre[:1] + torch.einsum("np,p...->n...", at, form.slopes[0])


@pytest.mark.parametrize("text", [*GREY, *COLOUR])
def test_every_transformed_image_lies_in_its_envelope(text: str) -> None:
    transformation, channels = _region(text), 3 if text in COLOUR else 1
    generator = torch.Generator().manual_seed(len(text))
    image = torch.rand(channels, 7, 6, generator=generator, dtype=torch.float64)
    image[:, :2] = 0.0
    identity, half = unit_tensors(transformation, torch.float64)
    for width in (2.0, 0.5, 0.05, 0.002):
        start = torch.rand(len(half), generator=generator, dtype=torch.float64) * (2 - width) - 1
        low, high = identity + start * half, identity + (start + width) * half
        form = envelope(transformation, image, low[None], high[None])
        at = 2 * torch.rand(400, len(half), generator=generator, dtype=torch.float64) - 1
        at[:20] = at[:20].sign()
        points = (low + high) / 2 + at * (high - low) / 2
        images = transform(transformation, image.expand(400, -1, -1, -1), points)
        outside = (images - _values(form, at)).abs() - form.radius[0]
        assert float(outside.max()) <= 0
    assert (
        float(form.radius.max()) < 0.05
    )  # of the narrowest box: an envelope that were never tight would prove nothing


@pytest.mark.parametrize("border", ["", ",border=edge", ",border=reflect"])
@pytest.mark.parametrize("corner", [(0, 0), (-3, 2), (4, -5)])
def test_a_translation_between_whole_pixels_is_enclosed_without_an_error(border: str, corner: tuple[int, int]) -> None:
    transformation = _region(f"translation=9{border}")
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 7, 6, generator=generator, dtype=torch.float64)
    low = torch.tensor([corner], dtype=torch.float64)
    form = envelope(transformation, image, low, low + 1)
    assert float(form.radius.max()) == MARGIN
    at = 2 * torch.rand(400, 2, generator=generator, dtype=torch.float64) - 1
    images = transform(transformation, image.expand(400, -1, -1, -1), low + (1 + at) / 2)
    assert float((images - _values(form, at)).abs().max()) < 1e-12
    crossing = envelope(transformation, image, low - 0.5, low + 0.5)
    assert float(crossing.radius.max()) > MARGIN


def test_a_part_is_split_at_the_whole_pixel_inside_it() -> None:
    """Within 1.7 pixels no half of the region, nor half of a half, would end at one."""
    subject = random_subject(0, 1, 1)
    certifier = _SampleCertifier(_region("translation=1.7,brightness=0.1"), 1.0, subject, None, ParameterSplits(), 9, 9)
    low, high = torch.tensor([-1.0, -0.5, -1.0]).double(), torch.tensor([0.0, 0.5, 1.0]).double()
    axis, cut = certifier._cut(low, high, torch.tensor([1.0, 2.0, 30.0]).double())
    assert (axis, cut) == (1, 0.0)
    axis, cut = certifier._cut(low, torch.tensor([0.0, 0.0, 1.0]).double(), torch.ones(3).double())
    assert (axis, cut * 1.7) == (0, pytest.approx(-1.0))
    axis, cut = certifier._cut(low, torch.tensor([-0.6, 0.0, 1.0]).double(), torch.tensor([1.0, 2.0, 30.0]).double())
    assert (axis, cut) == (2, 0.0)


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = {
        0: (nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)),
        1: (nn.Flatten(), nn.Linear(36, 10), nn.Tanh(), nn.Linear(10, 4)),
        2: (
            nn.Conv2d(1, 2, 3),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(3, 2, 1),
            nn.Flatten(),
            nn.Linear(8, 6),
            nn.Sigmoid(),
            nn.Linear(6, 4),
        ),
    }[seed % 3]
    return nn.Sequential(*layers).eval()


def _assess(model: nn.Module, x: Tensor, y: Tensor, budget: dict[str, float], **params: object) -> Artifacts:
    entry = {"library": "transformations", "algorithm": "branch-and-bound", "params": params}
    return windtunnel.assess(model, x, y, budget=budget, attacks=None, verify={"proof": entry}, sanity=None)["proof"]


@pytest.mark.parametrize("text", REGIONS)
def test_a_certified_sample_is_never_broken_on_a_dense_grid(text: str) -> None:
    """Benchmarks/transformations.py has 200 networks of each; here one, of another kind for each region."""
    it = random_subject([*REGIONS].index(text), REGIONS[text], 1)
    assert contradictions(text, it, points=1000, domains=30)[1] == 0


@pytest.mark.parametrize("leak", [-0.5, 0.2, 1.5])
def test_the_values_behind_a_leaky_relu_lie_in_its_form(leak: float) -> None:
    centre = torch.linspace(-1, 1, 9, dtype=torch.float64)[None]
    form = AffineForm(
        centre, torch.full((1, 1, 9), 0.3, dtype=torch.float64), torch.full((1, 9), 0.2, dtype=torch.float64)
    )
    after = form.relaxed(form.relu(leak))
    for at in torch.linspace(-1, 1, 11, dtype=torch.float64):
        for noise in (-0.2, 0.0, 0.2):
            values = nn.functional.leaky_relu(centre + 0.3 * at + noise, leak)
            assert ((values - after.centre - at * after.slopes[:, 0]).abs() <= after.radius + 1e-12).all()


def test_a_nearly_black_pixel_lies_in_its_envelope_of_gamma() -> None:
    region, image = _region("gamma=0.99"), torch.full((1, 1, 1), 1e-20, dtype=torch.float64)
    low, high = (torch.tensor([[value]], dtype=torch.float64) for value in (0.01, 0.02))
    form = envelope(region, image, low, high)
    assert float(transform(region, image[None], low)) <= float(form.centre + form.reach)


@pytest.mark.parametrize("empty", [0.0, torch.nan])
def test_an_answer_that_is_no_answer_breaks_an_occluded_sample(empty: float) -> None:
    """Behind some squares all logits are NaN, or equal, so that the first class wins."""

    class Dark(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            is_dark = (x.amin((1, 2, 3)) == 0)[:, None]
            answer = torch.where(is_dark, torch.full((1, 2), empty), torch.tensor([[0.0, 1.0]]))
            return answer + 0 * x.sum((1, 2, 3))[:, None]

    x, y = torch.full((2, 1, 4, 4), 0.5), torch.ones(2, dtype=torch.int64)
    grid = {"library": "transformations", "algorithm": "grid"}
    proof = {"library": "transformations", "algorithm": "branch-and-bound"}
    results = windtunnel.assess(
        Dark(), x, y, budget={"occlusion": 2}, attacks={"a": grid}, verify={"p": proof}, sanity=None
    )
    assert (results["p"].data["verdicts"] == Verdict.FALSIFIED).all()
    assert (results["a"].data["verdicts"] == Verdict.ATTACK_SUCCEEDED).all()


def test_a_falsified_sample_has_the_parameters_of_its_counterexample() -> None:
    model, x = _network(1), torch.rand(30, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    y = model(x).argmax(1)
    proof = _assess(model, x, y, {"rotation": 90})
    broken = proof.data["verdicts"] == Verdict.FALSIFIED
    assert broken.any()
    angles = proof.data["transformation_parameters"]["rotation"][broken, None].double()
    again = transform(_region("rotation=90"), x[broken], angles)
    assert torch.equal(again, proof.data["perturbed_inputs"][broken])
    assert (model(again).argmax(1) != y[broken]).all()
    assert torch.allclose(proof.data["broken_radius"][broken].double(), angles[:, 0].abs() / 90)
    assert proof.data["broken_radius"][~broken].isinf().all()
    certified, survived = (proof.metrics[f"{curve}_curve"] for curve in ("certified", "empirical"))
    assert all(low <= high for low, high in zip(certified, survived, strict=True))
    assert survived[-1] < 1


def test_the_worst_angle_of_a_linear_model_is_exact() -> None:
    """A linear model on an image that is linear in the angle's neighbourhood: the verified range ends where a dense grid breaks it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), torch.rand(8, 1, 6, 6)
    y = model(x).argmax(1)
    proof = _assess(model, x, y, {"rotation": 60}, verified_range=True, domains=1000)
    angles = torch.linspace(-60, 60, 20001, dtype=torch.float64)
    for i in range(len(x)):
        images = transform(_region("rotation=60"), x[i].expand(len(angles), -1, -1, -1), angles[:, None])
        wrong = model(images).argmax(1) != y[i]
        exact = float(angles[wrong].abs().min()) / 60 if wrong.any() else 1.0
        assert float(proof.data["certified_radius"][i]) == pytest.approx(exact, abs=2e-3)


def test_a_patch_of_a_linear_model_is_decided_exactly() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(36, 3)
    model, x = nn.Sequential(nn.Flatten(), layer), torch.rand(40, 1, 6, 6)
    y = model(x).argmax(1)
    proof = _assess(model, x, y, {"patch": 2})
    for i in range(len(x)):
        worst = float("inf")
        for other in {0, 1, 2} - {int(y[i])}:
            slope = (layer.weight[y[i]] - layer.weight[other]).detach().view(6, 6)
            lead = float((layer(x[i].flatten())[y[i]] - layer(x[i].flatten())[other]).detach())
            loss = slope * x[i, 0] - slope.clamp(max=0)  # what a free pixel takes away from the lead
            worst = min(worst, lead - float(nn.functional.avg_pool2d(loss[None], 2, 1).max() * 4))
        expected = Verdict.VERIFIED if worst > 0 else Verdict.FALSIFIED
        if abs(worst) > 1e-3:
            assert proof.data["verdicts"][i] == expected


def test_every_place_of_an_occlusion_is_tried() -> None:
    model, x = _network(0), torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    y = model(x).argmax(1)
    proof = _assess(model, x, y, {"occlusion": 3})
    for i in range(len(x)):
        holds = True
        for row in range(4):
            for column in range(4):
                hidden = x[i : i + 1].clone()
                hidden[..., row : row + 3, column : column + 3] = 0
                holds &= bool(model(hidden).argmax(1) == y[i])
        assert (proof.data["verdicts"][i] == Verdict.VERIFIED) == holds


def _halved_parts(image: Tensor, side: int, every: int = 1) -> PatchParts:
    """Two parts of each place of a patch, or of one place in `every`, after a split in a value of its own."""
    height, width = image.shape[1:]
    corners = torch.cartesian_prod(torch.arange(height - side + 1), torch.arange(width - side + 1))[::every]
    parts = PatchParts.whole(nn.functional.pad(corners, (1, 0), value=side), len(image))
    return parts.halves(torch.rand(parts.low.shape, dtype=torch.float64))


def test_the_images_of_a_patch_lie_in_its_form() -> None:
    image = torch.rand(2, 5, 5, dtype=torch.float64)
    parts = _halved_parts(image, 2)
    form, window = parts.form(image)
    images = parts.corners(image, torch.randn(parts.low.shape))
    expected = form.cropped(window, window.whole, 0.0)
    assert ((images - expected.centre).abs() <= expected.reach).all()
    inside = expected.slopes.abs().sum(1) > 0
    assert torch.equal(inside.flatten(1).sum(1), torch.full((len(parts),), 8))
    assert float((expected.centre + expected.reach).max()) <= 1 + 1e-6


@pytest.mark.parametrize("seed", range(7))
def test_a_window_has_the_bounds_of_the_whole_image(seed: int) -> None:
    it = random_subject(seed, 2, 1, size=(11, 12))
    image = it.dataset.inputs[0].double()
    network = FormNetwork(canonical_subject(it).subject.classifier.module, "it")
    parts = _halved_parts(image, 2, every=3)
    form, window = parts.form(image)
    for threshold in (-torch.inf, torch.inf):  # forwards alone, and backwards too
        bounds, _ = network.margins(form, 1, threshold, window)
        expected, _ = network.margins(form.cropped(window, window.whole, 0.0), 1, threshold, window.whole)
        is_same = (bounds - expected).abs() < 1e-9
        # Rounding decides between relaxations of a pooling that are equally tight; later layers see which.
        assert is_same.all() if threshold < 0 else is_same.double().mean() > 0.98


@pytest.mark.parametrize("most_images", [800, 40])  # all symbols at corners, or some
@pytest.mark.parametrize("is_windowed", [True, False])
def test_the_joint_bounds_of_convex_layers_hold_and_are_tighter(
    most_images: int, is_windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convex_block, "_MOST_IMAGES", most_images)
    torch.manual_seed(2)
    layers = (nn.Conv2d(2, 5, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3, padding=1))
    network = FormNetwork(
        torch.fx.symbolic_trace(nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(216, 3))), "it"
    )
    image = torch.rand(2, 12, 12, dtype=torch.float64)
    parts = _halved_parts(image, 2, every=5)
    form, window = parts.form(image)
    whole = form.cropped(window, window.whole, 0.0)
    if not is_windowed:
        form, window = whole, window.whole
    route, end, behind = network._route(window), network._block[-1], network._behind_block
    assert behind is not None
    bounds, plain = network._convex_bounds(form, route), {network._start: form}
    for node in (*network._block, behind):
        network._carry(node, plain, route, {})
    joint = network._behind(behind, bounds, route)
    most = 0.8 if most_images == 800 else 0.95
    assert float(joint.radius.mean()) < most * float(plain[behind].radius.mean())
    if is_windowed:
        joint = joint.cropped(route.steps[behind].result, route.steps[behind].result.whole, 0.0)
    for number in range(40):
        symbols = 2 * torch.rand(parts.low.shape, dtype=torch.float64) - 1
        symbols = symbols.sign() if number % 2 else symbols
        values = {network._start: whole.centre + torch.einsum("bp,bp...->b...", symbols, whole.slopes)}
        for node in (*network._block, behind):
            values[node] = network._value(node, values)
        errors = values[behind] - joint.centre - torch.einsum("bp,bp...->b...", symbols, joint.slopes)
        assert (errors.abs() <= joint.radius + 1e-12).all()
        if not is_windowed:
            pulls = torch.randn(values[end].shape, dtype=torch.float64)
            assert (bounds.minimum(pulls)[0] <= (pulls * values[end]).flatten(1).sum(1) + 1e-12).all()


def test_what_a_bound_leaves_open_of_a_patch_is_split() -> None:
    torch.manual_seed(3)
    model, x = random_network(0, 1, 8, 8), torch.rand(12, 1, 8, 8)
    y = model(x).argmax(1)
    places = 49
    proof = _assess(model, x, y, {"patch": 2})
    verified, parts = proof.data["verdicts"] == Verdict.VERIFIED, proof.data["subdomains"]
    assert (parts[verified] > places).any()
    assert not (proof.data["verdicts"] == Verdict.UNKNOWN).any()
    short = _assess(model, x, y, {"patch": 2}, domains=places)
    assert (short.data["verdicts"][verified & (parts > places)] == Verdict.UNKNOWN).all()


def test_a_layer_without_a_form_is_refused_by_its_name() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.GELU(), nn.Linear(5, 3)).eval(), torch.rand(2, 1, 6, 6)
    with pytest.raises(IncompatibleError, match="no bound for GELU"):
        _assess(model, x, torch.zeros(2, dtype=torch.int64), {"rotation": 5})


def test_a_ball_is_refused_with_the_line_to_write() -> None:
    x, y = torch.rand(2, 1, 6, 6), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(UserError, match=r"set verify\['proof'\]\['budget'\]=\{rotation: 10\}"):
        _assess(_network(0), x, y, {"norm": "Linf", "epsilon": 0.1})


class Residual(nn.Module):
    """A convolution beside its input: added to it, concatenated with it, or added `alpha` times."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Conv2d(1, 1, 3, padding=1)
        self.last = nn.Linear(72 if kind == "cat" else 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.inner(x))
        if self.kind == "cat":
            inner = torch.cat([inner, x], 1).permute(0, 2, 3, 1)
        else:
            inner = torch.add(inner, x, alpha=5) if self.kind == "alpha" else inner + x
        logits: Tensor = self.last(inner.reshape(inner.shape[0], -1))
        return logits


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_a_network_of_sums_and_concatenations_has_forms(kind: str) -> None:
    torch.manual_seed(2)
    model, x = Residual(kind).eval(), torch.rand(4, 1, 6, 6)
    proof = _assess(model, x, model(x).argmax(1), {"brightness": 0.01})
    assert Verdict.VERIFIED in proof.data["verdicts"].tolist()


def test_a_sum_with_a_factor_is_refused() -> None:
    model, x = Residual("alpha").eval(), torch.rand(4, 1, 6, 6)
    with pytest.raises(IncompatibleError, match=r"no bound for aten.add"):
        _assess(model, x, model(x).argmax(1), {"brightness": 0.01})
