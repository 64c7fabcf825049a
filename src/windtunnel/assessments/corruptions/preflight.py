"""Check a corruption suite before anything is computed."""

from __future__ import annotations

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.corruptions.reference import check_reference
from windtunnel.assessments.corruptions.table import corruptions_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError, unknown_word
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.registry.plugins import library_of

SMALLEST = 32  # imagecorruptions refuses anything smaller


def preflight(where: str, entry: CorruptionEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for a suite that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "corruptions")
    library_of(algorithm.library, "corruptions").require(where)
    classifier.require(algorithm, where)
    if entry.params:
        raise UserError(
            unknown_word(f"{where}.params", next(iter(entry.params)), ["(none)"], what="a parameter of a corruption")
        )
    if entry.budget != BudgetOverride():
        raise UserError(f"{where}.budget: a corruption has severities (1 to 5), no budget; remove it")
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: the data is tabular; corruptions work on images")
    lowest, highest = (float(end) for end in dataset.inputs.aminmax())
    if not (lowest >= 0 and highest <= 1):
        raise IncompatibleError(
            f"{where}: values run from {lowest:.4g} to {highest:.4g}; corruptions work on 8-bit images, scaled to [0, 1]. Scale "
            f"the data, and put the model's own normalisation inside the model"
        )
    channels, height, width = dataset.inputs.shape[1:]
    if channels not in {1, 3}:
        raise IncompatibleError(f"{where}: images have {channels} channels; corruptions work on 1 (grey) or 3 (colour)")
    if entry.upsample and min(height, width) >= SMALLEST:
        raise UserError(
            f"{where}.upsample: {entry.upsample} is for images under {SMALLEST} px; these are {height}x{width} and would only "
            f"lose detail; remove it"
        )
    side = entry.upsample or min(height, width)
    if side < SMALLEST:
        key = f"{where}.upsample: {entry.upsample}" if entry.upsample else f"{where}: images are {height}x{width}"
        raise IncompatibleError(
            f"{key}; imagecorruptions needs at least {SMALLEST} pixels a side. Set {where}.upsample: {SMALLEST} to resize, "
            f"corrupt and resize back"
        )
    pairs = [(corruption, severity) for corruption in corruptions_of(entry, where) for severity in entry.severities]
    check_reference(where, entry, pairs, dataset)
