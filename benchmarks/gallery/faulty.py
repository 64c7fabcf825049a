"""Faulty runs off the beaten path: attacks of the user's own, norms other than Linf, one attack alone, certificates alone, and data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.gallery import masks
from benchmarks.gallery.case import Case, changed, run_in, subject_with
from benchmarks.gallery.honest import Pair, digits, fitted, provable, trained
from windtunnel.core.contracts import Capability, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.evaluation.sanity.probes import uniform_in_ball
from windtunnel.records.artifacts import Artifacts

LINF: Mapping[str, object] = {"norm": "Linf", "epsilon": 0.1}
WIDE: Mapping[str, object] = {"norm": "Linf", "epsilon": 0.2}
L2: Mapping[str, object] = {"norm": "L2", "epsilon": 0.8}
L1: Mapping[str, object] = {"norm": "L1", "epsilon": 3.0}
L0: Mapping[str, object] = {"norm": "L0", "epsilon": 6}
OWN: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "own attack that descends the loss": ("descent", LINF),
    "own attack that descends the loss, L2": ("descent", L2),
    "own attack of random noise": ("random_noise", LINF),
    "own attack of random noise, L2": ("random_noise", L2),
    "own attack on a stale gradient": ("stale_gradient", LINF),
    "own attack averaged over pixels, L2": ("averaged_over_pixels", L2),
    "own attack averaged over samples, L2": ("averaged_over_samples", L2),
    "own attack normalised over the batch, L2": ("normalised_over_the_batch", L2),
    "own attack with a tenth of the budget": ("a_tenth_of_the_budget", WIDE),
    "own attack on half of each batch": ("half_of_the_batch", WIDE),
    "own attack that keeps the worst iterate": ("keeps_the_worst", LINF),
    "own attack that stops with the first broken samples": ("stops_with_the_first", WIDE),
    "own attack that stops with the first broken samples, L2": ("stops_with_the_first", L2),
    "own attack blended with the clean image, L2": ("blended_with_the_clean_image", L2),
    "own attack on saturated probabilities": ("on_saturated_probabilities", WIDE),
    "own attack aimed at the label": ("towards_the_label", LINF),
    "own attack on shuffled labels": ("on_permuted_labels", LINF),
    "own attack that forgets to sort back": ("forgets_to_sort_back", LINF),
    "own attack that only brightens": ("only_brighter", LINF),
    "own attack that leaves black and white": ("leaves_black_and_white", LINF),
    "own attack on differences too wide, L2": ("wide_differences", L2),
    "own attack of one pixel of six, L0": ("one_pixel", L0),
}
ALONE: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "Square alone, 3 queries": ({"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 3}}, LINF),
    "PGD in L2 alone, 1 small step": (
        {"library": "torchattacks", "algorithm": "PGDL2", "budget": {"steps": 1, "step_size": 0.1}}, L2,
    ),
    "noise of a library alone, L2": ({"library": "foolbox", "algorithm": "L2AdditiveGaussianNoiseAttack"}, L2),
    "PGD in L1 alone, 1 small step": (
        {"library": "foolbox", "algorithm": "L1PGD", "budget": {"steps": 1, "step_size": 0.1}}, L1,
    ),
    "one random rotation alone": (
        {"library": "transformations", "algorithm": "random", "params": {"queries": 1}}, {"rotation": 45},
    ),
    "PGD with gradients of another network": (
        {
            "library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": 0.0125},
            "adapt": "benchmarks.gallery.own_attacks:another_network",
        },
        LINF,
    ),
    "descent in steps of one pixel alone, L1": (
        {"library": "foolbox", "algorithm": "SparseL1DescentAttack", "budget": {"steps": 2, "step_size": 0.2}}, L1,
    ),
}  # fmt: skip
PGDL2: Mapping[str, object] = {
    "library": "torchattacks",
    "algorithm": "PGDL2",
    "budget": {"steps": 20, "step_size": 0.1},
}
SPARSE: Mapping[str, object] = {"library": "foolbox", "algorithm": "SparseL1DescentAttack", "budget": {"steps": 20}}
BIM: Mapping[str, object] = {"library": "torchattacks", "algorithm": "BIM", "budget": {"steps": 20}}
SQUARE: Mapping[str, object] = {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 100}}
MASKED: Mapping[str, tuple[Callable[[nn.Module], nn.Module], Mapping[str, object], Mapping[str, object]]] = {
    "wrong-sign gradient, L2": (masks.wrong_sign, PGDL2, L2),
    "bit-depth reduction, L2": (masks.bit_depth, PGDL2, L2),
    "float16 at temperature 1/1000, L2": (masks.saturated, PGDL2, L2),
    "aware of who asks for a gradient, L1": (masks.AwareOfGradients, SPARSE, L1),
    "logits rounded to even numbers, L1": (masks.rounded_logits, SPARSE, L1),
    "wrong-sign gradient, L1": (masks.wrong_sign, SPARSE, L1),
    "reseeds torch in its forward pass, Square alone": (masks.Reseeding, SQUARE, WIDE),
    "dead zones at black and white, BIM alone": (masks.dead_ends, BIM, LINF),
    "half of the pixels detached, L2": (masks.half_detached, PGDL2, L2),
    "dithered by a pattern of the image, L2": (masks.dithered, PGDL2, L2),
}
CROWN: Mapping[str, object] = {"library": "auto-LiRPA", "algorithm": "crown"}


def faulty(n: int = 60) -> Iterator[Case]:
    """Yield all of them, on digits."""
    data = digits(n)
    cnn, mlp = trained(data), trained(data, "mlp", 15)
    subject = subject_with(cnn, data[0])
    for name, (function, budget) in OWN.items():
        entry = {"library": "function", "algorithm": f"benchmarks.gallery.own_attacks:{function}"}
        yield Case(name, subject, data[1], {"budget": budget, "attacks": {"own": entry}})
    for name, (library_entry, budget) in ALONE.items():
        yield Case(name, subject, data[1], {"budget": budget, "attacks": {"alone": library_entry}})
    yield _overfitted_to_fgsm(data)
    for name, (mask, masked_entry, budget) in MASKED.items():
        run = {"budget": budget, "attacks": {"alone": masked_entry}}
        yield Case(name, subject_with(mask(cnn), data[0]), data[1], run, stand_in=cnn)
    yield _without_gradients(data, cnn)
    yield from _certificates(data, mlp)
    yield from _data_and_protocol(data, cnn)


def _overfitted_to_fgsm(data: Pair) -> Case:
    """A network trained on FGSM's examples at one large step, and assessed with FGSM alone (catastrophic overfitting)."""
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )

    def loss(net: nn.Module, x: Tensor, y: Tensor, done: float) -> Tensor:
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(net(point), y), point)
        return nn.functional.cross_entropy(net((x + 0.2 * gradient.sign()).clamp(0, 1)), y)

    fgsm = {"library": "torchattacks", "algorithm": "FGSM"}
    run = {"budget": WIDE, "attacks": {"alone": fgsm}}
    return Case(
        "FGSM alone on a network trained on FGSM", subject_with(fitted(module, data, 25, loss), data[0]), data[1], run
    )


def _without_gradients(data: Pair, cnn: nn.Module) -> Case:
    subject = subject_with(cnn, data[0])
    blind = replace(subject, classifier=replace(subject.classifier, capabilities=frozenset({Capability.FORWARD})))
    entry = {"library": "function", "algorithm": "benchmarks.gallery.own_attacks:random_noise"}
    run = {"budget": WIDE, "attacks": {"own": entry}}
    return Case("a model without gradients under random noise", blind, data[1], run, stand_in=cnn)


def _certificates(data: Pair, mlp: nn.Module) -> Iterator[Case]:
    """Verification without attacks, by verifiers that are not sound."""
    subject = subject_with(mlp, data[0])

    def case(name: str, spoil: Callable[[Evidence], Evidence], entry: Mapping[str, object] = CROWN) -> Case:
        return Case(name, subject, data[1], {"attacks": {}, "verification": {"crown": entry}}, spoil=spoil)

    yield case("certifies every sample, no attacks", changed("crown", _all_verified))
    yield case("certifies by 20 random points, no attacks", _by_random_points)
    yield case("certifies what one gradient step leaves, no attacks", _by_one_step)
    yield case("certifies another model, no attacks", lambda e: _of_another_model(e, provable(data)))
    yield case("certifies margins above -6, no attacks", _by_a_negative_margin)
    radii = {"library": "windtunnel", "algorithm": "cascade", "timeout": 2, "time_budget": 10, "samples": {"n": 12},
             "radius": {"max": 0.2, "tolerance": 0.005}}  # fmt: skip
    run = {"budget": {"epsilon": 0.03}, "verification": {"cascade": radii}}
    yield Case("certified radii twice too large", subject, data[1], run, spoil=changed("cascade", _twice_as_far))
    smaller = {**CROWN, "budget": {"epsilon": 0.1 / 255}}
    yield case("certifies at epsilon/255, no attacks", _stated_at_the_full_budget, smaller)


def _all_verified(data: dict[str, Tensor]) -> None:
    data["verdicts"] = torch.full_like(data["verdicts"], int(Verdict.VERIFIED))


def _with_verdicts(evidence: Evidence, verified: Tensor) -> Evidence:
    def change(data: dict[str, Tensor]) -> None:
        data["verdicts"] = torch.where(verified, int(Verdict.VERIFIED), int(Verdict.UNKNOWN))

    return changed("crown", change)(evidence)


def _by_random_points(evidence: Evidence) -> Evidence:
    subject, generator = evidence.subject, torch.Generator().manual_seed(1)
    verified = subject.clean_correct.clone()
    for _ in range(20):
        points = uniform_in_ball(subject.dataset.inputs, 0.1, generator)
        verified &= subject.classifier.predict(points) == subject.dataset.targets
    return _with_verdicts(evidence, verified)


def _by_one_step(evidence: Evidence) -> Evidence:
    subject, x = evidence.subject, evidence.subject.dataset.inputs.clone().requires_grad_()
    loss = nn.functional.cross_entropy(subject.classifier.module(x), subject.dataset.targets)
    points = (x.detach() + 0.1 * torch.autograd.grad(loss, x)[0].sign()).clamp(0, 1)
    verified = subject.clean_correct & (subject.classifier.predict(points) == subject.dataset.targets)
    return _with_verdicts(evidence, verified)


def _by_a_negative_margin(evidence: Evidence) -> Evidence:
    bounds, labels = evidence.assessments[0].artifacts.tensors("output_bounds"), evidence.data.targets[:, None]
    others = bounds["upper"].scatter(1, labels, -torch.inf).amax(1)
    return _with_verdicts(
        evidence, evidence.subject.clean_correct & (bounds["lower"].gather(1, labels)[:, 0] - others > -6)
    )


def _twice_as_far(data: dict[str, Tensor]) -> None:
    data["certified_radius"] = 2 * data["certified_radius"]


def _of_another_model(evidence: Evidence, module: nn.Module) -> Evidence:
    with tempfile.TemporaryDirectory() as folder:
        other = run_in(Path(folder), subject_with(module, evidence.subject.dataset), evidence.params)
        (crown,) = other.assessments
        return _with_verdicts(evidence, crown.tensor("verdicts") == Verdict.VERIFIED)


def _stated_at_the_full_budget(evidence: Evidence) -> Evidence:
    (crown,) = evidence.assessments
    old = crown.artifacts.metadata
    ball = old.semantics.perturbation.model_copy(update={"epsilon": 0.1})
    metadata = old.model_copy(update={"semantics": old.semantics.model_copy(update={"perturbation": ball})})
    artifacts = Artifacts(crown.name, crown.artifacts.directory, dict(crown.artifacts.data), metadata)
    return replace(evidence, assessments=(replace(crown, artifacts=artifacts),), notes={})


def _data_and_protocol(data: Pair, cnn: nn.Module) -> Iterator[Case]:
    """Numbers that are worthless whatever the attacks find: checks can warn of these, and no attack can."""
    assessed, train = data
    n, generator = len(assessed), torch.Generator().manual_seed(2)

    def case(name: str, dataset: Dataset, known: Dataset | None = train, module: nn.Module = cnn) -> Case:
        return Case(name, subject_of(subject_with(module, assessed).classifier, dataset), known)

    ten = replace(assessed.subset(torch.arange(n) % 10), ids=assessed.ids)
    noise = 0.02 * torch.randn(assessed.inputs.shape, generator=generator)
    yield case("ten images, six times with noise", replace(ten, inputs=(ten.inputs + noise).clamp(0, 1)))
    shifted = torch.cat([assessed.inputs[: n // 2], assessed.inputs[: n - n // 2].roll(1, 3)])
    targets = torch.cat([assessed.targets[: n // 2], assessed.targets[: n - n // 2]])
    yield case("each image again, shifted by a pixel", replace(assessed, inputs=shifted, targets=targets))
    known = train.subset(torch.arange(n))
    brighter = replace(known, inputs=(known.inputs + 1 / 255).clamp(0, 1), ids=assessed.ids)
    yield case("training images, a grey level brighter", brighter)
    weak = trained((assessed, train.subset(torch.arange(150))), "mlp", 6)
    swapped = assessed.targets.clone()
    swapped[assessed.targets == 9], swapped[assessed.targets == 8] = 8, 9
    yield case("two classes in the wrong order", replace(assessed, targets=swapped))
    yield case("black for white", replace(assessed, inputs=1 - assessed.inputs))
    yield case("rows for columns", replace(assessed, inputs=assessed.inputs.transpose(2, 3).contiguous()))
    pool, _ = digits(900)
    right = (subject_with(weak, pool).clean_correct).nonzero().flatten()
    yield case("samples selected by correctness", pool.subset(right[: 2 * n]), None, weak)
    answers = subject_with(weak, pool).clean_predictions
    yield case("labelled by the model", replace(pool, targets=answers).subset(torch.arange(2 * n)), None, weak)
    eight = (pool.targets < 8).nonzero().flatten()[:n]
    yield case("two classes without a sample", pool.subset(eight))
    yield case("a class answered by a constant", assessed, train, masks.ConstantClass(cnn, 3))
    small = {"norm": "L2", "epsilon": 0.03}
    run: dict[str, object] = {
        "budget": small,
        "attacks": {"pgd": {**PGDL2, "budget": {"steps": 20, "step_size": 0.005}}},
    }
    yield Case("an epsilon that no one uses, L2", subject_with(cnn, assessed), train, run)
    suite = {"corruptions": {"common": {"algorithm": "common", "severities": [1], "upsample": 32}}}
    yield Case("the suite common at severity 1", _subject_of_a_few(cnn, assessed), train, suite)


def _subject_of_a_few(module: nn.Module, data: Dataset) -> Subject:
    return subject_with(module, data.subset(torch.arange(min(20, len(data)))))
