"""The clean evaluation, as an assessment like every other."""

import torch

from windtunnel.assessments.clean.metrics import (
    adaptive_calibration_error,
    area_under_roc,
    brier_score,
    confusion_matrix,
    negative_log_likelihood,
    precision_recall_f1,
    reliability,
)
from windtunnel.assessments.clean.table import IDENTITY
from windtunnel.core.contracts import Json, PerturbationDistribution, Semantics, Verdict
from windtunnel.core.errors import UnsoundError
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.result import AssessmentResult
from windtunnel.records.tables import ClassShare, written


def assess_clean(params: Clean, subject: Subject) -> AssessmentResult:
    """Accuracy with its interval, per class, confusion, likelihood and calibration of the unperturbed model.

    Extra key of robustness_data.pt: `clean_logits` float32 (N, K). Raises UnsoundError where the model gives NaN or infinity.
    """
    logits, targets, predictions = subject.clean_logits, subject.dataset.targets, subject.clean_predictions
    broken = logits.isnan().any(1) | (logits == torch.inf).any(1)  # softmax of either is NaN
    if broken.any():
        bad = int(broken.nonzero()[0])
        raise UnsoundError(
            f"clean: the model gives NaN or infinity for sample {subject.dataset.ids[bad]}; no number would mean anything"
        )
    correct, n = subject.clean_correct, len(subject.dataset)
    rate = binomial_rate(int(correct.sum()), n, params.ci_level, params.ci_method)
    verdicts = torch.where(
        correct, int(Verdict.CORRECT_UNDER_PERTURBATION), int(Verdict.MISCLASSIFIED_UNDER_PERTURBATION)
    )
    criterion = subject.classifier.criterion
    calibrated = criterion.without_threshold(logits)
    calibration = reliability(calibrated, targets, params.calibration_bins)
    metrics: dict[str, Json] = {
        **rate.metrics("clean_accuracy"),
        "corrupted_accuracy": rate.value,
        "accuracy_ci_low": rate.low,
        "accuracy_ci_high": rate.high,
        "n_samples": n,
        "n_correct": int(correct.sum()),
        "nll": negative_log_likelihood(calibrated, targets),
        "ece": calibration.ece,
        "adaptive_ece": adaptive_calibration_error(calibrated, targets, params.calibration_bins),
        "brier": brier_score(calibrated, targets),
        "mean_confidence": float(criterion.probabilities(logits).amax(1).mean()),
        **precision_recall_f1(predictions, targets),
        **area_under_roc(logits, targets),
        "per_class": written(_per_class(params, subject)),
        "confusion_matrix": confusion_matrix(predictions, targets, subject.dataset.num_classes).tolist(),
        "reliability": calibration.bins.model_dump(mode="json"),
    }
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
