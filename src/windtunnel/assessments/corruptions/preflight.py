"""Check a corruption suite before anything is computed."""

import torch

from windtunnel.assessments.catalogue import find_algorithm, params_as
from windtunnel.assessments.corruptions.jobs import Job, is_foreign, run_job
from windtunnel.assessments.corruptions.reference import check_reference
from windtunnel.assessments.corruptions.table import corruptions_of
from windtunnel.boundary.data.corrupted import corrupted_file, forget_files
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.params.corruptions import FOLDER, CorruptionEntry
from windtunnel.params.entry import Block, Budget, BudgetOverride
from windtunnel.registry.plugins import library_of

SMALL = 32  # pixels a side; `upsample` is for images under it


def preflight(where: str, entry: CorruptionEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for a suite that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "corruptions")
    library = library_of(algorithm.library, "corruptions")
    library.require(where)
    if library.adapter is None:
        raise UserError(
            f"{where}.library: {library.name} has no adapter, which corrupts an image; its record names one"
        )
    classifier.require(algorithm, where)
    params_as(Block, entry, where)
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
    channels = dataset.inputs.shape[1]
    if channels not in {1, 3}:
        raise IncompatibleError(f"{where}: images have {channels} channels; corruptions work on 1 (grey) or 3 (colour)")
    rows = corruptions_of(entry, where)
    _check_size(where, entry, dataset, max(row.smallest_side for row in rows.values()))
    check_reference(where, entry, [(name, severity) for name in rows for severity in entry.severities], dataset)
    if entry.library == FOLDER:
        _check_files(entry, dataset)
    elif is_foreign(library):
        for row in rows.values():  # a mistake shows on the first image
            pixels = (dataset.inputs[:1] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
            run_job(Job(row, entry.severities[0], pixels, (0,), entry, dataset.ids[:1]))


def _check_size(where: str, entry: CorruptionEntry, dataset: Dataset, smallest: int) -> None:
    height, width = dataset.inputs.shape[2:]
    if entry.upsample and entry.library == FOLDER:
        raise UserError(f"{where}.upsample: images of a folder are corrupted already; remove it")
    if entry.upsample and min(height, width) >= SMALL:
        raise UserError(
            f"{where}.upsample: {entry.upsample} is for images under {SMALL} px; these are {height}x{width} and would only "
            f"lose detail; remove it"
        )
    side = entry.upsample or min(height, width)
    if side < smallest:
        key = f"{where}.upsample: {entry.upsample}" if entry.upsample else f"{where}: images are {height}x{width}"
        raise IncompatibleError(
            f"{key}; {entry.library} needs at least {smallest} pixels a side. Set {where}.upsample: {smallest} to resize, "
            f"corrupt and resize back"
        )


def _check_files(entry: CorruptionEntry, dataset: Dataset) -> None:
    """Raise UserError for the first sample without a file under some corruption and severity."""
    assert entry.path is not None
    forget_files()
    labels = dataset.targets.tolist() if dataset.labelled else [None] * len(dataset)
    names = ["" if label is None else dataset.class_names[label] for label in labels]
    for corruption in corruptions_of(entry, "corruptions"):
        for severity in entry.severities:
            for sample, name in zip(dataset.ids, names, strict=True):
                corrupted_file(entry.path, corruption, severity, sample, name)
