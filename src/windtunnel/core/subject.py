"""Input of every assessment: the model, the samples, and their clean logits and predictions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier, copied
from windtunnel.core.contracts import Caveat, Json
from windtunnel.core.dataset import Dataset, select


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under assessment and the assessed samples.

    `dataset.targets` are the references: ground truth, or the model's own predictions where there are no labels
    (then `caveats` holds one of code `pseudo_labels`). `clean_logits` float32 (N, K) and `clean_predictions`
    int64 (N,) were computed once, by the clean assessment. `resolved`: digest of what was resolved for the assessment,
    under which its shards are kept; empty where it runs outside the pipeline, and then it keeps none.
    """

    classifier: Classifier
    dataset: Dataset
    clean_logits: Tensor
    clean_predictions: Tensor
    seed: int = 0
    caveats: tuple[Caveat, ...] = ()
    resolved: str = ""

    @property
    def clean_correct(self) -> Tensor:
        """True for each sample that is classified as its label without perturbation; (N,) bool."""
        return self.clean_predictions == self.dataset.targets

    def subset(self, indices: Tensor) -> Subject:
        """Return the same model on the samples at `indices`."""
        return replace(
            self,
            dataset=self.dataset.subset(indices),
            clean_logits=self.clean_logits[indices],
            clean_predictions=self.clean_predictions[indices],
        )

    def without(self, ids: Iterable[str]) -> Subject:
        """Return the same model on the samples that are not among `ids`."""
        excluded = set(ids)
        return self.subset(
            torch.tensor([i for i, name in enumerate(self.dataset.ids) if name not in excluded], dtype=torch.int64)
        )

    def choose(self, n: int | None, how: str, seed: int) -> Subject:
        """`n` of the samples, chosen `first`, `random` or `stratified` (an entry's `samples`)."""
        of = len(self.dataset)
        if n is None or n >= of:
            return self
        subset = self.subset(select(of, n, how, seed, self.dataset.targets))
        drawn: dict[str, Json] = {} if how == "first" else {"seed": seed}
        chosen = {"of": of, "n": len(subset.dataset), "selection": how, **drawn}
        return replace(subset, dataset=replace(subset.dataset, chosen=chosen))


def subject_of(classifier: Classifier, dataset: Dataset, seed: int = 0) -> Subject:
    """Evaluate the clean samples once; without labels the model's own predictions become the targets.

    A copy of the model answers where it can be copied: what a stateful one remembers of them would protect them later.
    """
    module = copied(classifier.module, classifier.module.parameters())
    asked = classifier if module is None else replace(classifier, module=module)
    logits = asked.logits(dataset.inputs)
    predictions = classifier.criterion.predict(logits, dataset.targets if dataset.labelled else None)
    if dataset.labelled:
        return Subject(classifier, dataset, logits, predictions, seed, classifier.caveats)
    caveats = (PSEUDO_LABELS, *classifier.caveats)
    return Subject(classifier, replace(dataset, targets=predictions), logits, predictions, seed, caveats)


PSEUDO_LABELS = Caveat(
    "pseudo_labels",
    "The data has no labels: the model's own predictions are the reference, so accuracies measure agreement with the "
    "unperturbed model, not correctness.",
)
