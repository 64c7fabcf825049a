"""Errors of a reference model, which mCE divides by; refused where they are of other data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from windtunnel.assessments.corruptions.rows import IMAGECORRUPTIONS
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.corruptions import FOLDER, CorruptionEntry
from windtunnel.records.artifacts import Artifacts, read_artifacts, same_samples
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.metadata import corruption_pairs, part_name

ALEXNET = "imagenet-alexnet"
Pair = tuple[str, int]  # corruption, severity

# Error rates of AlexNet on ImageNet-C at severities 1 to 5 (Hendrycks, Dietterich 2019, github.com/hendrycks/robustness);
# their means are the published normalisers, .886428 for gaussian_noise and so on.
_ALEXNET_ERRORS: dict[str, tuple[float, float, float, float, float]] = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "shot_noise": (0.71224, 0.85108, 0.93574, 0.98182, 0.99146),
    "impulse_noise": (0.78374, 0.89808, 0.94870, 0.98720, 0.99548),
    "defocus_blur": (0.65624, 0.73202, 0.85036, 0.91364, 0.94714),
    "glass_blur": (0.64308, 0.75054, 0.88806, 0.91622, 0.93344),
    "motion_blur": (0.58430, 0.70048, 0.82108, 0.89750, 0.92638),
    "zoom_blur": (0.70008, 0.76992, 0.80784, 0.84198, 0.87198),
    "snow": (0.71726, 0.88392, 0.86468, 0.91870, 0.94952),
    "frost": (0.61390, 0.79734, 0.88790, 0.89942, 0.93430),
    "fog": (0.67474, 0.76050, 0.84378, 0.87260, 0.94500),
    "brightness": (0.45140, 0.48502, 0.54048, 0.62166, 0.72440),
    "contrast": (0.64548, 0.76150, 0.88874, 0.97760, 0.99270),
    "elastic_transform": (0.52596, 0.70116, 0.55686, 0.64076, 0.80554),
    "pixelate": (0.52218, 0.54620, 0.73728, 0.87092, 0.91262),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
}
_ALEXNET_CLEAN_ERROR = 1 - 0.56522  # torchvision's AlexNet, the one they used
_IMAGENET = (1000, (3, 224, 224))


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference model on P (corruption, severity) pairs.

    wrong: float64 (P + 1, N), 1 where it errs on a sample, the clean inputs last; (P + 1, 1) where only rates are
    published. digest: sha256 of the model, empty where it is none of ours.
    """

    name: str
    wrong: np.ndarray
    digest: str = ""


def check_reference(where: str, entry: CorruptionEntry, pairs: Sequence[Pair], dataset: Dataset) -> None:
    """Raise UserError unless the reference that `entry` names, if any, has these pairs on data of this kind."""
    if entry.reference == ALEXNET:
        _check_alexnet(where, entry, pairs, dataset)
    elif entry.reference is not None:
        suite = _read_suite(where, entry.reference)
        theirs, ours = suite.tensor("clean_inputs").shape[1:], dataset.inputs.shape[1:]
        for what, mine, other in (
            ("images", "x".join(map(str, ours)), "x".join(map(str, theirs))),
            ("library", entry.library, suite.metadata.library),
            ("classes", list(dataset.class_names), suite.class_names),
            ("upsample", entry.upsample, suite.metadata.kwargs.extra.get("upsample")),
        ):
            if mine != other:
                raise UserError(_unfit(where, entry.reference, f"{what} {_brief(other)} there, {_brief(mine)} here"))
        missing = [part_name(c, s) for c, s in pairs if (c, s) not in _pairs_of(suite)]
        if missing:
            raise UserError(_unfit(where, entry.reference, f"it has no {', '.join(missing[:6])}"))


def reference_of(where: str, entry: CorruptionEntry, pairs: Sequence[Pair], dataset: Dataset) -> Reference | None:
    """Return the reference that `entry` names, checked against the very samples (`dataset`); None where it names none."""
    if entry.reference is None:
        return None
    check_reference(where, entry, pairs, dataset)
    if entry.reference == ALEXNET:
        return alexnet(pairs)
    suite = _read_suite(where, entry.reference)
    same_images = suite.sample_names == list(dataset.ids) and same_samples(suite, dataset.inputs)
    if not same_images or not torch.equal(suite.tensor("targets"), dataset.targets):
        raise UserError(_unfit(where, entry.reference, "it was measured on other samples or other targets"))
    places = [_pairs_of(suite).index(pair) for pair in pairs]
    predictions = torch.cat([suite.tensor("corruption_predictions")[places], suite.tensor("clean_predictions")[None]])
    provenance = suite.metadata.provenance
    wrong = (predictions != dataset.targets).double().numpy()
    return Reference(provenance.model_source, wrong, provenance.model_digest)


def alexnet(pairs: Sequence[Pair]) -> Reference:
    """AlexNet's published errors on ImageNet-C; NaN for a corruption that none are published for."""
    errors = [_ALEXNET_ERRORS[c][s - 1] if c in _ALEXNET_ERRORS else np.nan for c, s in pairs]
    return Reference(ALEXNET, np.array([*errors, _ALEXNET_CLEAN_ERROR])[:, None])


def _check_alexnet(where: str, entry: CorruptionEntry, pairs: Sequence[Pair], dataset: Dataset) -> None:
    classes, size = dataset.num_classes, tuple(dataset.inputs.shape[1:])
    reason = ""
    if (classes, size) != _IMAGENET or entry.upsample:
        shape = "x".join(map(str, size))
        reason = f"it is of ImageNet, 1000 classes at 3x224x224; these are {classes} classes at {shape}"
    elif entry.library not in (IMAGECORRUPTIONS, FOLDER):
        reason = f"it is of ImageNet-C, these corruptions are of {entry.library}"
    elif unpublished := sorted({c for c, _ in pairs} - set(_ALEXNET_ERRORS)):
        reason = f"it has no {', '.join(unpublished)}, which mCE leaves out: drop them here"
    if reason:
        raise UserError(_unfit(where, ALEXNET, reason))


def _read_suite(where: str, directory: str) -> Artifacts:
    if not (Path(directory) / METADATA_FILE).is_file():
        allowed = "a published reference, nor the directory of a suite (reports/robustness/<name> of another run)"
        raise UserError(unknown_word(f"{where}.reference", directory, [ALEXNET], what=allowed))
    suite = read_artifacts(Path(directory))
    if "corruption_predictions" not in suite.data:
        raise UserError(_unfit(where, directory, "it is no corruption suite of windtunnel"))
    return suite


def _pairs_of(suite: Artifacts) -> list[Pair]:
    return [*corruption_pairs(suite.metadata.kwargs)]


def _unfit(where: str, reference: str, why: str) -> str:
    return f"{where}.reference: '{reference}' does not fit: {why}"


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
