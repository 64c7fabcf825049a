"""Targets of a targeted attack."""

import torch
from torch import Tensor

from windtunnel.core.dataset import Dataset, select
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Samples

RULES = ("least_likely", "random", "next")
TargetClasses = int | str | list[int] | None


def check_targets(where: str, targets: TargetClasses, dataset: Dataset) -> None:
    """Raise UserError for targets that no sample, or not every sample, can be pushed to.

    One class for all may be the label of some samples (they are left out, with a caveat), but not of all.
    """
    key = f"{where}.target_classes"
    if targets is None:
        return
    if isinstance(targets, str):
        if targets not in RULES:
            raise UserError(unknown_word(key, targets, RULES, what="a rule for targets"))
        return
    for value in [targets] if isinstance(targets, int) else targets:
        if not 0 <= value < dataset.num_classes:
            raise UserError(f"{key}: {value} is no class; classes are 0 to {dataset.num_classes - 1}")
    if isinstance(targets, list) and len(targets) != len(dataset):
        raise UserError(f"{key}: {len(targets)} targets for {len(dataset)} samples; give one a sample, or one for all")
    same = torch.as_tensor(targets) == dataset.targets
    if dataset.labelled and same.any() and (isinstance(targets, list) or same.all()):
        sample = dataset.ids[int(same.nonzero()[0])]
        raise UserError(f"{key}: the target of sample {sample} equals its label; there is nothing to reach")


def check_chosen_targets(where: str, targets: TargetClasses, samples: Samples, dataset: Dataset) -> None:
    """Run `check_targets` on the samples that an entry will select from `dataset`, if known without a seed."""
    chosen = dataset
    if samples.selection == "first" or samples.n is None:
        chosen = dataset.subset(select(len(dataset), samples.n, "first", 0, dataset.targets))
    elif isinstance(targets, list):  # which samples is known only with the run's seed
        n = min(samples.n, len(dataset))
        chosen = Dataset(dataset.inputs[:n], torch.full((n,), -1), dataset.ids[:n], dataset.class_names)
    check_targets(where, targets, chosen)


def target_summary(targets: TargetClasses) -> tuple[int, ...] | str | None:
    """Return the targets as metadata.json names them."""
    if isinstance(targets, list):
        return tuple(targets)
    return (targets,) if isinstance(targets, int) else targets


def targets_for(where: str, rule: TargetClasses, subject: Subject, name: str) -> Tensor | None:
    """Return the class each sample is to be pushed to, int64 (N,); None for an untargeted attack.

    least_likely: the least likely class but the label, by the clean logits; random: any class but the label, by the
    run's seed; next: the label plus one. Raises UserError as `check_targets`.
    """
    check_targets(where, rule, subject.dataset)
    labels, classes = subject.dataset.targets, subject.dataset.num_classes
    if rule is None:
        return None
    if isinstance(rule, int):
        return torch.full_like(labels, rule)
    if isinstance(rule, list):
        return torch.tensor(rule)
    if rule == "next":
        return (labels + 1) % classes
    if rule == "least_likely":
        return subject.clean_logits.scatter(1, labels[:, None], torch.inf).argmin(1)
    generator = torch.Generator().manual_seed(derive_seed(subject.seed, name, "targets"))
    return (labels + torch.randint(1, classes, labels.shape, generator=generator)) % classes


def has_aim(subject: Subject, aims: Tensor | None) -> Tensor:
    """Which samples there is something to reach for, bool (N,): a target that is the label already leaves nothing to attack."""
    return torch.ones(len(subject.dataset), dtype=torch.bool) if aims is None else aims != subject.dataset.targets


def reached_without_attack(subject: Subject, aims: Tensor | None) -> Tensor:
    """Which samples the clean prediction gives to the adversary already, bool (N,).

    Untargeted: every misclassified one. Targeted: those predicted as their target, unless that is their label: right is not broken.
    """
    if aims is None:
        return ~subject.clean_correct
    return (subject.clean_predictions == aims) & has_aim(subject, aims)
