"""Metrics of the clean evaluation, from logits and targets alone."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.core.criterion import SOFTMAX
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.tables import ClassShare, ConfidenceBins, table, write_csv


@dataclass(frozen=True, slots=True)
class Reliability:
    """Calibration in equal-width confidence bins over (0, 1].

    confidence, accuracy: (B,) means, 0 for an empty bin; counts: int64 (B,).
    """

    confidence: Tensor
    accuracy: Tensor
    counts: Tensor

    @property
    def bins(self) -> ConfidenceBins:
        """The same as it stands among the metrics."""
        return ConfidenceBins(
            confidence=self.confidence.tolist(), accuracy=self.accuracy.tolist(), count=self.counts.tolist()
        )

    @property
    def ece(self) -> float:
        """Expected calibration error in [0, 1] (Guo et al. 2017, arXiv 1706.04599)."""
        weights = self.counts / self.counts.sum().clamp(min=1)
        return float((weights * (self.confidence - self.accuracy).abs()).sum())


def reliability(logits: Tensor, targets: Tensor, bins: int) -> Reliability:
    """Confidence (max softmax) against accuracy in `bins` bins; logits (N, K), targets (N,)."""
    confidence, correct = logits.double().softmax(1).amax(1), SOFTMAX.is_correct(logits, targets).double()
    bin_index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    counts = torch.bincount(bin_index, minlength=bins)
    mean = [torch.bincount(bin_index, v, minlength=bins) / counts.clamp(min=1) for v in (confidence, correct)]
    return Reliability(mean[0], mean[1], counts)


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
