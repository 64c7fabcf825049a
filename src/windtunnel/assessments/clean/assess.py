"""The clean evaluation, as an assessment like every other."""

from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.assessments.clean.table import IDENTITY
from windtunnel.core.contracts import Json, PerturbationDistribution, Semantics, Verdict
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.errors import UnsoundError
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs
from windtunnel.records.result import AssessmentResult
from windtunnel.records.tables import ClassShare, ConfidenceBins, table, write_csv, written

# A metric of 10,000 numbers at most: the million of ImageNet took 4 s to write and read. The figure and confusion.csv need none.
_MOST_CLASSES_OF_MATRIX = 100


def assess_clean(params: Clean, subject: Subject) -> AssessmentResult:
    """Accuracy with its interval, per class, confusion, likelihood and calibration of the unperturbed model.

    Extra key of robustness_data.pt: `clean_logits` float32 (N, K). Raises UnsoundError where the model gives NaN or infinity.
    """
    logits, targets, predictions = subject.clean_logits, subject.dataset.targets, subject.clean_predictions
    broken = logits.isnan().any(1) | (logits == torch.inf).any(1)  # softmax of either is NaN
    if broken.any():
        bad = int(broken.nonzero()[0])
        raise UnsoundError(
            f"clean: the model gives NaN or infinity for sample {subject.dataset.ids[bad]}; such a model cannot be assessed"
        )
    correct, n = subject.clean_correct, len(subject.dataset)
    rate = binomial_rate(int(correct.sum()), n, params.ci_level, params.ci_method)
    verdicts = torch.where(
        correct, int(Verdict.CORRECT_UNDER_PERTURBATION), int(Verdict.MISCLASSIFIED_UNDER_PERTURBATION)
    )
    criterion = subject.classifier.criterion
    calibrated = criterion.without_threshold(logits)
    calibration, calibration_error = reliability(calibrated, targets, params.calibration_bins)
    metrics: dict[str, Json] = {
        **rate.metrics("clean_accuracy"),
        "corrupted_accuracy": rate.value,
        "accuracy_ci_low": rate.low,
        "accuracy_ci_high": rate.high,
        "n_samples": n,
        "n_correct": int(correct.sum()),
        "nll": negative_log_likelihood(calibrated, targets),
        "ece": calibration_error,
        "adaptive_ece": adaptive_calibration_error(calibrated, targets, params.calibration_bins),
        "brier": brier_score(calibrated, targets),
        "mean_confidence": float(criterion.probabilities(logits).amax(1).mean()),
        **precision_recall_f1(predictions, targets),
        **area_under_roc(logits, targets),
        "per_class": written(_per_class(params, subject)),
    }
    if subject.dataset.num_classes <= _MOST_CLASSES_OF_MATRIX:
        metrics["confusion_matrix"] = confusion_matrix(predictions, targets, subject.dataset.num_classes).tolist()
    metrics["reliability"] = calibration.model_dump(mode="json")
    data = {
        **base_data(subject, verdicts),
        "perturbed_inputs": subject.dataset.inputs,
        "perturbed_predictions": predictions,
        "clean_logits": logits,
    }
    semantics = Semantics(IDENTITY, PerturbationDistribution("identity", 0))
    options = params.model_dump(mode="json")
    return AssessmentResult("clean", semantics, data, metrics, kwargs={**base_kwargs(subject), **options})


def _per_class(params: Clean, subject: Subject) -> list[ClassShare]:
    rows = []
    for label, name in enumerate(subject.dataset.class_names):
        mine = subject.dataset.targets == label
        rate = binomial_rate(int(subject.clean_correct[mine].sum()), int(mine.sum()), params.ci_level, params.ci_method)
        rows.append(ClassShare.of(rate, **{"class": name}))
    return rows


def reliability(logits: Tensor, targets: Tensor, bins: int) -> tuple[ConfidenceBins, float]:
    """Return calibration in equal-width bins of the confidence (max softmax) over (0, 1], and its expected error in [0, 1].

    Args:
        logits: float (N, K).
        targets: int64 (N,).
        bins: number of bins.

    Source: Guo et al. 2017, arXiv 1706.04599.
    """
    confidence, correct = logits.double().softmax(1).amax(1), SOFTMAX.is_correct(logits, targets).double()
    bin_index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    counts = torch.bincount(bin_index, minlength=bins)
    means = [torch.bincount(bin_index, v, minlength=bins) / counts.clamp(min=1) for v in (confidence, correct)]
    error = (counts / counts.sum().clamp(min=1) * (means[0] - means[1]).abs()).sum()
    confidences, accuracies = (mean.tolist() for mean in means)
    return ConfidenceBins(confidence=confidences, accuracy=accuracies, count=counts.tolist()), float(error)


def negative_log_likelihood(logits: Tensor, targets: Tensor) -> float:
    """Mean cross entropy in nats."""
    return float(nn.functional.cross_entropy(logits.double(), targets))


def brier_score(logits: Tensor, targets: Tensor) -> float:
    """Mean squared distance of the probabilities from the one-hot target, 0 to 2 (Brier 1950)."""
    probability = logits.double().softmax(1)
    return float((probability - nn.functional.one_hot(targets, logits.shape[1])).square().sum(1).mean())


def adaptive_calibration_error(logits: Tensor, targets: Tensor, bins: int) -> float:
    """Return the expected calibration error in bins of equally many samples, which no empty or crowded bin decides.

    Mean over the bins, weighted by their size, of |accuracy - mean confidence|. Source: Nixon et al. 2019, arXiv 1904.01685.
    """
    confidence = logits.double().softmax(1).amax(1)
    order = confidence.argsort(stable=True)
    right = SOFTMAX.is_correct(logits, targets)[order].double()
    parts = zip(confidence[order].tensor_split(bins), right.tensor_split(bins), strict=True)
    return sum(len(c) * abs(float(c.mean()) - float(r.mean())) for c, r in parts if len(c)) / max(1, len(targets))


def precision_recall_f1(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Return precision, recall and F1 of the predictions (N,), micro, macro and weighted by the samples of a class.

    A class that is never predicted has precision 0. Classes without samples and predictions do not count.
    """
    from sklearn.metrics import precision_recall_fscore_support  # half a second, which stages that read metrics save

    metrics: dict[str, float] = {}
    for average in ("micro", "macro", "weighted"):
        scores = precision_recall_fscore_support(targets, predictions, average=average, zero_division=0)
        metrics |= {
            f"{name}_{average}": float(v) for name, v in zip(("precision", "recall", "f1"), scores[:3], strict=True)
        }
    return metrics


def area_under_roc(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the area under the ROC curve of two logits; empty for more classes, and where a class has no sample."""
    if logits.shape[1] != 2 or len(targets.unique()) < 2:
        return {}
    from sklearn.metrics import roc_auc_score

    return {"auroc": float(roc_auc_score(targets, (logits[:, 1] - logits[:, 0]).double()))}


def confusion_matrix(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """int64 (K, K): rows are targets, columns predictions; an invalid prediction (-1) is in no column."""
    valid = predictions >= 0
    flat = targets[valid] * num_classes + predictions[valid]
    return torch.bincount(flat, minlength=num_classes**2).view(num_classes, num_classes)


def write_clean_series(clean: Artifacts, class_names: tuple[str, ...], directory: Path) -> None:
    """per_class_accuracy.csv, reliability.csv, and confusion.csv (a row a sample, as the confusion template reads it)."""
    shares = table(tuple[ClassShare, ...], clean.metrics, "per_class")
    rows = [{"class": share.label, "accuracy": share.accuracy, "n": share.n} for share in shares]
    write_csv(directory / "per_class_accuracy.csv", ("class", "accuracy", "n"), rows)
    header, bins = ("confidence", "accuracy", "count"), table(ConfidenceBins, clean.metrics, "reliability").filled
    write_csv(directory / "reliability.csv", header, [dict(zip(header, row, strict=True)) for row in bins])
    pairs = zip(clean.tensor("targets").tolist(), clean.tensor("clean_predictions").tolist(), strict=True)
    answers = [{"actual": class_names[actual], "predicted": class_names[predicted]} for actual, predicted in pairs]
    write_csv(directory / "confusion.csv", ("actual", "predicted"), answers)
