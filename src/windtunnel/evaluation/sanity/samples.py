"""Group A, the samples: are they as many as they seem, of every class, rightly labelled, and unknown to the model?"""

import hashlib
import math

import torch
from scipy.stats import fisher_exact, mannwhitneyu
from torch import Tensor, nn

from windtunnel.core.scratch import by_samples, sample_parts
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, Severity, our_check
from windtunnel.evaluation.sanity.evidence import GREY_LEVELS, Evidence
from windtunnel.evaluation.sanity.rates import discordant, significantly_more
from windtunnel.records.storage import evenly

MOST = 500  # samples that are compared with the training split, or evaluated
NEIGHBOURS = 5
NEAR = 10_000 * 784  # values that are compared with others at once: 10,000 small images
SUSPECTS = 2000  # samples that are compared with all others: of any number, so that time grows as the samples do
CHANCE = 0.001  # below it a class without a sample is no accident of the draw
# Of copies but for noise, a grey level, a shift by a pixel or left and right exchanged.
FINE, COARSE = 32, 8  # pixels a side: of images that are compared, and of those that candidates are searched by
SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))
CANDIDATES = 3  # nearest coarse images of a query that are compared at FINE
COMPARED = 64  # at a time: 64 x 10 moves x 10,000 distances are 23 MB
ALIKE = 0.1  # of the contrast of the image; docs/sanity.md has what this finds in honest data
NOISY = 0.6  # of the contrast, where the difference is noise without structure
WHITE = 0.12  # largest correlation of neighbouring pixels of noise
PIXELS = 256  # below these a correlation of neighbours says little
REPEATED = 5  # different samples with equal logits make a constant


def _groups(inputs: Tensor) -> Tensor:
    """For each input (n, ...) the number of its group of equal inputs, in the order of their first; int64 (n,)."""
    group_of: dict[bytes, int] = {}
    groups = []
    for part in sample_parts(inputs):
        # -0 is 0, but has other bits.
        for row in (inputs[part] + 0.0).flatten(1).contiguous().numpy():
            groups.append(group_of.setdefault(hashlib.sha256(row.data).digest(), len(group_of)))
    return torch.tensor(groups, dtype=torch.int64)


def _labels_nearby(inputs: Tensor, labels: Tensor, groups: Tensor, indices: Tensor) -> Tensor:
    """Labels of the nearest samples of other groups of equal ones (n, NEIGHBOURS) for those at `indices` (n,); -1 where there are fewer."""
    queries = inputs[indices].flatten(1)
    nearest = torch.full((len(indices), NEIGHBOURS), torch.inf)
    neighbours = torch.full((len(indices), NEIGHBOURS), -1)
    for part in sample_parts(inputs, NEAR):
        distances = torch.cdist(queries, inputs[part].flatten(1))
        distances[groups[indices, None] == groups[part]] = torch.inf  # itself and its copies
        candidates = torch.cat([nearest, distances], 1)
        names = torch.cat([neighbours, labels[part].expand(len(indices), -1)], 1)
        nearest, places = candidates.topk(NEIGHBOURS, largest=False)
        neighbours = names.gather(1, places).where(nearest.isfinite(), -1)
    return neighbours


@our_check("A18")
def no_sample_twice(evidence: Evidence, limit: float) -> CheckResult:
    """Ten copies of an image are one observation; an interval that counts ten is too narrow by a factor of three.

    The share of samples whose input another sample before it has, bit by bit; of at most 2,000 images also but for small noise,
    a grey level, a shift by a pixel or left and right exchanged (compared at 32 pixels a side at most).
    """
    data = evidence.data
    groups = _groups(data.inputs)
    order = torch.arange(len(groups))
    first = torch.full((int(groups.max()) + 1,), len(groups)).scatter_reduce(0, groups, order, "amin")[groups]
    exact, near = first != order, torch.zeros(len(groups), dtype=torch.bool)
    compared = order[~exact][evenly(len(groups) - int(exact.sum()), min(len(groups) - int(exact.sum()), SUSPECTS))]
    if data.is_image:
        original = copies(data.inputs, compared, fine_images(data.inputs), earlier=True)
        near[compared] = original >= 0
        first[compared] = torch.where(original >= 0, original, compared)
    # Where not all were compared, the rest count as those that were.
    value = float((exact.sum() + near.sum() * (~exact).sum() / max(1, len(compared))) / len(groups))
    copied = exact | near
    pairs = [f"{evidence.ids[i]} of {evidence.ids[int(first[i])]}" for i in copied.nonzero().flatten()[:3].tolist()]
    reason = (
        f"{int(exact.sum())} samples are equal to others and {int(near.sum())} of {len(compared)} differ from others by noise, "
        f"a grey level, a shifted pixel or a mirror alone ({', '.join(pairs)}): intervals are too narrow"
    )
    return CheckResult(value > limit, value, n=len(groups), samples=evidence.named(copied), reason=reason)


@our_check("A19")
def equal_inputs_equal_labels(evidence: Evidence, limit: float) -> CheckResult:
    """One image under two labels bounds the accuracy of every model. Counts samples whose equal has another label."""
    data = evidence.data
    groups = _groups(data.inputs)
    each_group = torch.zeros(int(groups.max()) + 1, dtype=torch.int64)
    lowest, highest = (
        each_group.scatter_reduce(0, groups, data.targets, how, include_self=False) for how in ("amin", "amax")
    )
    bad = (lowest != highest)[groups]
    reason = f"{int(bad.sum())} samples have an equal with another label"
    return CheckResult(bool(bad.any()), int(bad.sum()), n=len(bad), samples=evidence.named(bad), reason=reason)


@our_check("A20")
def not_trained_on(evidence: Evidence, limit: float) -> CheckResult:
    """A sample of the training split tells nothing of others.

    The share of the first 500 samples of which a training sample is a copy: for images as in A18, else one that differs by less
    than 1/255 of the range in the root mean square. Only where the training split is known.
    """
    if evidence.train is None:
        raise NotApplicable("the training split is not known")
    assessed, trained_on = evidence.data.inputs[:MOST], evidence.train.inputs
    if assessed.shape[1:] != trained_on.shape[1:]:
        raise NotApplicable("the training split has another shape")
    low, high = evidence.data.value_range
    if evidence.data.is_image:
        is_known = copies(assessed, torch.arange(len(assessed)), fine_images(trained_on)) >= 0
    else:
        parts = [torch.cdist(assessed, trained_on[p]).amin(1, keepdim=True) for p in sample_parts(trained_on, NEAR)]
        is_known = torch.cat(parts, 1).amin(1) <= (high - low) / GREY_LEVELS * assessed.shape[1] ** 0.5
    value = float(is_known.double().mean())
    reason = f"{int(is_known.sum())} of {len(is_known)} samples are in the training split, or copies of samples there"
    return CheckResult(value > limit, value, n=len(is_known), samples=evidence.named(is_known), reason=reason)


@our_check("A21")
def labels_are_right(evidence: Evidence, limit: float) -> CheckResult:
    """A wrong label counts as an error of the model, or as a success of it.

    Confident learning estimates how many labels are wrong: samples whose probability of another class is at least the mean
    probability of that class among the samples that bear its label (the note). Those on which most of the five nearest other
    samples bear that other class too, and none the sample's own label, are the value; flags above the threshold. Between
    classes that look alike, as the shirts and coats of Fashion-MNIST, some neighbour bears the label.
    """
    data = evidence.data
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
        outvoted = (votes == believed[part, None]).double().mean(1) > 0.5
        wrong[part] = outvoted & ~(votes == labels[part, None]).any(1)
    # Of more suspects the rest count as those that were looked at.
    value = float(wrong.double().mean()) * len(suspects) / max(1, len(looked_at))
    estimate = float(confident.double().mean())
    reason = f"{int(wrong.sum())} labels are contradicted by the model and by the nearest samples"
    note = f"confident learning: {estimate:.1%} of the labels may be wrong"
    if len(looked_at) < len(suspects):
        note += f"; {len(looked_at)} of these {len(suspects)} were compared with their neighbours"
    return CheckResult(value > limit, value, n=len(labels), samples=evidence.named(wrong), reason=reason, note=note)


@our_check("A22")
def not_only_these_images(evidence: Evidence, limit: float) -> CheckResult:
    """A model that learned the assessed images by heart is right on them and nowhere else.

    Accuracy on the first 500 samples, and on the same with every value one grey level higher or lower (clipped): flags where
    it falls by more than the threshold and the exact McNemar test says so at 5 %. And, where the training split is known, what
    no model does that was not shown easier samples than it learned from: accuracy there is lower by more than ten points
    (Fisher's exact test, 0.1 %), or a margin there is smaller in more than 65 % of pairs (Mann-Whitney, 0.1 %).
    """
    data, classifier = evidence.data, evidence.classifier
    right, step = evidence.subject.clean_correct[:MOST], (data.value_range[1] - data.value_range[0]) / GREY_LEVELS
    drops, reasons = [], []
    for sign, direction in ((1, "higher"), (-1, "lower")):
        moved = (data.inputs[:MOST] + sign * step).clamp(*data.value_range)
        still = classifier.predict(moved, data.targets[:MOST]) == data.targets[:MOST]
        lost, gained = discordant(right, still)
        drops.append((lost - gained) / len(right))
        if drops[-1] > limit and significantly_more(lost, gained):
            reasons.append(f"accuracy falls by {drops[-1]:.1%} on images one grey level {direction}")
    if evidence.train is not None and evidence.train.labelled:
        train_logits, labels = classifier.logits(evidence.train.inputs[:MOST]), evidence.train.targets[:MOST]
        is_correct = classifier.criterion.is_correct(train_logits, labels)
        gap = float(right.double().mean()) - float(is_correct.double().mean())
        table = [[int(m.sum()), int((~m).sum())] for m in (right, is_correct)]
        drops.append(gap)
        if gap > 0.1 and fisher_exact(table, alternative="greater").pvalue < 0.001:
            reasons.append(f"accuracy is {gap:.1%} lower on the training split than on the assessed samples")
        both = ((evidence.subject.clean_logits[:MOST], data.targets[:MOST]), (train_logits, labels))
        margins = [classifier.criterion.margin(logits, y) for logits, y in both]
        larger = mannwhitneyu(*margins, alternative="greater")
        share = float(larger.statistic) / (len(margins[0]) * len(margins[1]))
        if share > 0.65 and larger.pvalue < 0.001:
            easier = "the samples are easier than the training split"
            reasons.append(f"{easier}: their margin is larger in {share:.0%} of pairs")
    return CheckResult(bool(reasons), max(drops), n=len(right), reason="; ".join(reasons))


@our_check("A25")
def every_class_is_assessed(evidence: Evidence, limit: float) -> CheckResult:
    """A number that leaves out a class says nothing of it, and a class answered by a constant cannot be attacked.

    Classes of the model without a single sample: a WARN where a draw of equally frequent classes leaves out as many with a chance
    of less than 0.1 %, else an INFO (100 images cannot hold 1,000 classes). A WARN also where five or more different samples of
    one predicted class get equal logits, bit by bit, and those of another class vary. The same where the logit of a class is
    equal for all samples. An INFO where the logits of every class are constant: the model gives hard labels.
    """
    data, logits = evidence.data, evidence.subject.clean_logits
    n, k = logits.shape
    names = [*data.class_names, *map(str, range(len(data.class_names), k))]
    counts = torch.bincount(data.targets.clamp(min=0), minlength=k).tolist()
    missing = [name for name, count in zip(names, counts, strict=False) if not count]
    reasons, severity = [], Severity.INFO
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        reasons.append(f"{len(missing)} of {k} classes have no sample ({shown})")
        # At most: every choice of so many classes, times the chance that a draw of n avoids them.
        log_chance = math.log(math.comb(k, len(missing))) + n * math.log(1 - len(missing) / k)
        severity = Severity.WARN if log_chance < math.log(CHANCE) else severity
    different = torch.zeros(n, dtype=torch.bool)
    groups = _groups(data.inputs)
    different[torch.full((int(groups.max()) + 1,), n).scatter_reduce(0, groups, torch.arange(n), "amin")] = True
    constant, samples, varying = [], torch.zeros(n, dtype=torch.bool), 0
    for label in evidence.subject.clean_predictions[different].unique().tolist():
        mine = different & (evidence.subject.clean_predictions == label)
        if int(mine.sum()) < REPEATED:
            continue
        if (logits[mine] == logits[mine][:1]).all():
            constant.append(f"{int(mine.sum())} different samples of class {names[label]}")
            samples |= mine
        else:
            varying += 1
    if constant:
        severity = Severity.INFO if not varying and len(constant) > 1 else Severity.WARN
        reasons.append(f"equal logits for {', '.join(constant[:5])}")
    blind = [names[i] for i in (logits == logits[:1]).all(0).nonzero().flatten().tolist()]
    if k > 2 and blind and not constant and int(different.sum()) >= REPEATED:  # [0, z] is a binary head
        severity = Severity.WARN
        reasons.append(f"the logit of class {', '.join(blind[:5])} is the same for every sample")
    reason = "; ".join(reasons)
    return CheckResult(bool(reasons), len(missing), k, evidence.named(samples), reason=reason, severity=severity)


def fine_images(inputs: Tensor) -> Tensor:
    """Return images (N, C, H, W) with sides of at most FINE pixels, by averaging; float32."""
    size = (min(inputs.shape[2], FINE), min(inputs.shape[3], FINE))
    return by_samples(lambda part: nn.functional.adaptive_avg_pool2d(part, size), inputs)


def _coarse(images: Tensor) -> Tensor:
    """Return fine images (n, C, h, w) as vectors of COARSE pixels a side, less their mean; (n, d)."""
    size = (min(images.shape[2], COARSE), min(images.shape[3], COARSE))
    flat = nn.functional.adaptive_avg_pool2d(images, size).flatten(1)
    return flat - flat.mean(1, keepdim=True)


def _are_copies(first: Tensor, other: Tensor) -> Tensor:
    """Return True where two images (n, C, h, w) differ by little, or by noise alone; bool (n,)."""
    contrast = (first - first.mean((1, 2, 3), keepdim=True)).flatten(1).norm(dim=1)
    apart = first - other
    apart = apart - apart.mean((1, 2, 3), keepdim=True)  # a grey level more or less
    energy = apart.square().flatten(1).sum(1)
    ratio = energy.sqrt() / contrast.clamp(min=1e-3 * first[0].numel() ** 0.5)
    neighbours = (apart[:, :, 1:] * apart[:, :, :-1], apart[..., 1:] * apart[..., :-1])
    correlations = [products.flatten(1).sum(1) for products in neighbours]
    correlation = torch.stack(correlations).abs().amax(0) / energy.clamp(min=1e-12)
    is_noise = (correlation < WHITE) & (ratio < NOISY) & (first[0, 0].numel() >= PIXELS)
    is_copy: Tensor = (ratio < ALIKE) | is_noise
    return is_copy


def copies(inputs: Tensor, indices: Tensor, known_images: Tensor, *, earlier: bool = False) -> Tensor:
    """Find the image of `known_images` that each of `inputs[indices]` is a copy of.

    Each image is mirrored, and moved by a pixel in every direction. The nearest of COARSE pixels a side over all these are the
    candidates, which are compared with it at FINE pixels, less the means and a border of one pixel.

    Args:
        inputs: float32 (N, C, H, W), read COMPARED at a time.
        indices: int64 (n,), which of them.
        known_images: float32 (M, C, h, w), of `fine_images`.
        earlier: compare sample i with the images before place i of `known_images` alone.

    Returns:
        int64 (n,), indices of `known_images`; -1 where there is none.
    """
    coarse = by_samples(_coarse, known_images)
    originals = torch.full((len(indices),), -1)
    can_shift = min(known_images.shape[2:]) > 2
    border = slice(1, -1) if can_shift else slice(None)
    for rows in torch.arange(len(indices)).split(COMPARED):
        queries = inputs[indices[rows]]
        shifted = [queries.roll(offset, (2, 3)) for offset in (SHIFTS if can_shift else ((0, 0),))]
        images = torch.stack([fine_images(moved) for moved in (*shifted, queries.flip(3))], 1)
        distances = torch.cdist(_coarse(images.flatten(0, 1)), coarse).view(len(rows), images.shape[1], -1)
        if earlier:
            later = torch.arange(len(known_images)) >= indices[rows, None]
            distances.masked_fill_(later[:, None], torch.inf)
        nearest, moves = distances.min(1)
        values, candidates = nearest.topk(min(CANDIDATES, len(known_images)), largest=False)
        for value, candidate in zip(values.T.flip(0), candidates.T.flip(0), strict=True):
            moved = images[torch.arange(len(rows)), moves.gather(1, candidate[:, None]).squeeze(1)]
            pair = (moved[..., border, border], known_images[candidate][..., border, border])
            is_copy = _are_copies(*pair) & value.isfinite()
            originals[rows[is_copy]] = candidate[is_copy]
    return originals
