"""Group A, the samples: are they as many as they seem, rightly labelled, and unknown to the model?"""

from __future__ import annotations

import hashlib

import torch
from scipy.stats import fisher_exact, mannwhitneyu
from torch import Tensor

from windtunnel.core.chunks import sample_parts
from windtunnel.core.classifier import argmax_or_invalid
from windtunnel.core.storage import evenly
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, Severity, Tier, check
from windtunnel.evaluation.sanity.evidence import GREY_LEVELS, Evidence
from windtunnel.evaluation.sanity.probes import margin_loss
from windtunnel.evaluation.sanity.rates import significantly_more

MOST = 500  # samples that are compared with the training split, or evaluated
NEIGHBOURS = 5
NEAR = 10_000 * 784  # values that are compared with others at once: 10,000 small images
SUSPECTS = 2000  # samples that are compared with all others: of any number, so that time grows as the samples do


def _groups(inputs: Tensor) -> Tensor:
    """For each input (n, ...) the number of its group of equal inputs, in the order of their first; int64 (n,)."""
    known: dict[bytes, int] = {}
    found = []
    for part in sample_parts(inputs):
        # -0 is 0, but has other bits.
        for row in (inputs[part] + 0.0).flatten(1).contiguous().numpy():
            found.append(known.setdefault(hashlib.sha256(row.data).digest(), len(known)))
    return torch.tensor(found, dtype=torch.int64)


def _labels_nearby(inputs: Tensor, labels: Tensor, groups: Tensor, indices: Tensor) -> Tensor:
    """Labels of the nearest samples of other groups of equal ones (n, NEIGHBOURS) for those at `indices` (n,); -1 where there are fewer."""
    own = inputs[indices].flatten(1)
    nearest = torch.full((len(indices), NEIGHBOURS), torch.inf)
    found = torch.full((len(indices), NEIGHBOURS), -1)
    for some in sample_parts(inputs, NEAR):
        distances = torch.cdist(own, inputs[some].flatten(1))
        distances[groups[indices, None] == groups[some]] = torch.inf  # itself and its copies
        known = torch.cat([nearest, distances], 1)
        names = torch.cat([found, labels[some].expand(len(indices), -1)], 1)
        nearest, places = known.topk(NEIGHBOURS, largest=False)
        found = names.gather(1, places).where(nearest.isfinite(), -1)
    return found


@check(
    "A18", "No sample twice", Tier.STORED, Severity.WARN, threshold=0.01,
    source="statistical practice",
    remedy="Remove the copies: an interval of n samples is only as narrow as n different samples make it.",
)  # fmt: skip
def no_sample_twice(evidence: Evidence, limit: float) -> CheckResult:
    """Ten copies of an image are one observation; an interval that counts ten is too narrow by a factor of three.

    The share of samples whose input, bit by bit, another sample before it has.
    """
    groups = _groups(evidence.subject.dataset.inputs)
    first = torch.full((int(groups.max()) + 1,), len(groups)).scatter_reduce(
        0, groups, torch.arange(len(groups)), "amin"
    )
    copies = first[groups] != torch.arange(len(groups))
    value, distinct = float(copies.double().mean()), len(first)
    reason = f"only {distinct} of {len(groups)} samples are different: intervals are too narrow"
    return CheckResult(value > limit, value, n=len(groups), samples=evidence.named(copies), reason=reason)


@check(
    "A19", "Equal inputs have equal labels", Tier.STORED, Severity.WARN,
    source="statistical practice",
    remedy="Correct or remove them: no classifier can be right on both.",
)  # fmt: skip
def equal_inputs_equal_labels(evidence: Evidence, limit: float) -> CheckResult:
    """One image under two labels bounds the accuracy of every model. Counts samples whose equal has another label."""
    data = evidence.subject.dataset
    groups = _groups(data.inputs)
    lowest, highest = (
        torch.zeros(int(groups.max()) + 1, dtype=torch.int64).scatter_reduce(
            0, groups, data.targets, how, include_self=False
        )
        for how in ("amin", "amax")
    )
    bad = (lowest != highest)[groups]
    reason = f"{int(bad.sum())} samples have an equal with another label"
    return CheckResult(bool(bad.any()), int(bad.sum()), n=len(bad), samples=evidence.named(bad), reason=reason)


@check(
    "A20", "No sample was trained on", Tier.STORED, Severity.WARN, threshold=0.01,
    source="Barz, Denzler 2020 (ciFAIR: near-duplicates between training and test)",
    remedy="Assess samples that training did not see: on these accuracy and robustness are those of memory.",
)  # fmt: skip
def not_trained_on(evidence: Evidence, limit: float) -> CheckResult:
    """A sample of the training split tells nothing of others.

    The share of the first 500 samples whose nearest training sample is equal to them, or differs by less than one grey level
    (1/255) in the root mean square. Only where the training split is known.
    """
    if evidence.train is None:
        raise NotApplicable("the training split is not known")
    assessed, known = evidence.subject.dataset.inputs[:MOST].flatten(1), evidence.train.inputs.flatten(1)
    if assessed.shape[1] != known.shape[1]:
        raise NotApplicable("the training split has another shape")
    low, high = evidence.subject.dataset.value_range
    near = torch.cat(
        [torch.cdist(assessed, known[p]).amin(1, keepdim=True) for p in sample_parts(known, NEAR)], dim=1
    ).amin(1)
    seen = near <= (high - low) / GREY_LEVELS * assessed.shape[1] ** 0.5
    whole = torch.zeros(len(evidence.ids), dtype=torch.bool)
    whole[: len(seen)] = seen
    value = float(seen.double().mean())
    reason = f"{int(seen.sum())} of {len(seen)} samples are in the training split"
    return CheckResult(value > limit, value, n=len(seen), samples=evidence.named(whole), reason=reason)


@check(
    "A21", "Labels are right", Tier.STORED, Severity.WARN, threshold=0.05,
    source="Northcutt et al. 2021 (confident learning), doi:10.1613/jair.1.12125",
    remedy="Look at the samples named: where model and neighbours agree on another class, the label is more often wrong than both.",
)  # fmt: skip
def labels_are_right(evidence: Evidence, limit: float) -> CheckResult:
    """A wrong label counts as an error of the model, or as a success of it.

    Confident learning estimates how many labels are wrong: samples whose probability of another class is at least the mean
    probability of that class among the samples that bear its label (the note). Those on which most of the five nearest other
    samples bear that other class too are the value; flags above the threshold.
    """
    data = evidence.subject.dataset
    if not data.labelled:
        raise NotApplicable("the data has no labels")
    probability, labels = evidence.subject.clean_logits.double().softmax(1), data.targets
    bars = torch.full((data.num_classes,), torch.inf, dtype=torch.float64)
    for label in labels.unique().tolist():
        bars[label] = probability[labels == label, label].mean()
    believed = torch.where(probability >= bars, probability, -1.0).argmax(1)
    confident = (probability >= bars).any(1) & (believed != labels)
    suspects, wrong = confident.nonzero().flatten(), torch.zeros_like(confident)
    looked_at = suspects[evenly(len(suspects), min(len(suspects), SUSPECTS))]
    groups = _groups(data.inputs) if len(looked_at) else labels
    for part in looked_at.split(200):
        votes = _labels_nearby(data.inputs, labels, groups, part)
        wrong[part] = (votes == believed[part, None]).double().mean(1) > 0.5
    # Of more suspects the rest count as those that were looked at.
    value = float(wrong.double().mean()) * len(suspects) / max(1, len(looked_at))
    estimate = float(confident.double().mean())
    return CheckResult(
        value > limit,
        value,
        n=len(labels),
        samples=evidence.named(wrong),
        reason=f"{int(wrong.sum())} labels are contradicted by the model and by the nearest samples",
        note=f"confident learning: {estimate:.1%} of the labels may be wrong"
        + (
            f"; {len(looked_at)} of these {len(suspects)} were compared with their neighbours"
            if len(looked_at) < len(suspects)
            else ""
        ),
    )


@check(
    "A22", "Not only these images", Tier.PASSES, Severity.WARN, threshold=0.02,
    source="Feldman, Zhang 2020 (memorisation); Recht et al. 2019",
    remedy="The model knows these images and not their kind, or they were picked: assess it on fresh samples, drawn at random.",
)  # fmt: skip
def not_only_these_images(evidence: Evidence, limit: float) -> CheckResult:
    """A model that learned the assessed images by heart is right on them and nowhere else.

    Accuracy on the first 500 samples, and on the same with every value one grey level higher or lower (clipped): flags where
    it falls by more than the threshold and the exact McNemar test says so at 5 %. And, where the training split is known, what
    no model does that was not shown easier samples than it learned from: accuracy there is lower by more than ten points
    (Fisher's exact test, 0.1 %), or a margin there is smaller in more than 65 % of pairs (Mann-Whitney, 0.1 %).
    """
    data, classifier = evidence.subject.dataset, evidence.subject.classifier
    right, step = evidence.subject.clean_correct[:MOST], (data.value_range[1] - data.value_range[0]) / GREY_LEVELS
    drops, reasons = [], []
    for sign, words in ((1, "higher"), (-1, "lower")):
        moved = (data.inputs[:MOST] + sign * step).clamp(*data.value_range)
        still = classifier.predict(moved) == data.targets[:MOST]
        lost, gained = int((right & ~still).sum()), int((still & ~right).sum())
        drops.append((lost - gained) / len(right))
        if drops[-1] > limit and significantly_more(lost, gained):
            reasons.append(f"accuracy falls by {drops[-1]:.1%} on images one grey level {words}")
    if evidence.train is not None and evidence.train.labelled:
        there, labels = classifier.logits(evidence.train.inputs[:MOST]), evidence.train.targets[:MOST]
        known = argmax_or_invalid(there) == labels
        gap = float(right.double().mean()) - float(known.double().mean())
        table = [[int(m.sum()), int((~m).sum())] for m in (right, known)]
        drops.append(gap)
        if gap > 0.1 and fisher_exact(table, alternative="greater").pvalue < 0.001:
            reasons.append(f"accuracy is {gap:.1%} lower on the training split than on the assessed samples")
        margins = [
            -margin_loss(logits, y)
            for logits, y in ((evidence.subject.clean_logits[:MOST], data.targets[:MOST]), (there, labels))
        ]
        larger = mannwhitneyu(*margins, alternative="greater")
        share = float(larger.statistic) / (len(margins[0]) * len(margins[1]))
        if share > 0.65 and larger.pvalue < 0.001:
            reasons.append(
                f"the samples are easier than the training split: their margin is larger in {share:.0%} of pairs"
            )
    return CheckResult(bool(reasons), max(drops), n=len(right), reason="; ".join(reasons))
