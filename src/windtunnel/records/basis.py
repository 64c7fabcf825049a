"""The headline metric of an assessment, and the region and the samples that a number is of.

The first is for places that show one number: a bar of a chart, a line of a table, a stage's log. A rate is shown with the others,
wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from windtunnel.core.contracts import AssessmentKind, Norm
from windtunnel.core.errors import UserError
from windtunnel.core.transformations import place_text
from windtunnel.records.metadata import Metadata, Rate
from windtunnel.records.sandwich import Layer, layers_in
from windtunnel.registry.plugins import families, family_of

# What an assessment of a kind leads with, in words; a family whose record says otherwise leads with that.
OF_KIND: Mapping[AssessmentKind, Mapping[str, str]] = {
    AssessmentKind.EMPIRICAL_ATTACK: {"adversarial_accuracy": "robust accuracy"},
    AssessmentKind.FORMAL_VERIFICATION: {"certified_accuracy": "certified"},
    AssessmentKind.STATISTICAL_SAMPLING: {"corrupted_accuracy": "corrupted accuracy"},
}
_CLEAN = {"clean_accuracy": "correct on clean inputs"}  # the clean evaluation is also the corruption "none"
_NO_ENTRY = {key: phrase for of_kind in OF_KIND.values() for key, phrase in of_kind.items()} | _CLEAN
FIRST_SAMPLES = "the first samples, no unbiased estimate"


class Basis(NamedTuple):
    """The region and the samples that a number is of.

    epsilon: None for no bound; norm: None for no ball; n: None where not known. total: the number of all samples, where n may be
    fewer; only_first: whether these are the first samples, which is no unbiased estimate for all. around: `Region.around`.
    """

    norm: Norm | None = None
    epsilon: float | None = None
    n: int | None = None
    total: int | None = None
    only_first: bool = False
    around: str = ""

    @classmethod
    def of(cls, metadata: Metadata) -> Basis:
        """Return the region of an assessment and the number of its samples."""
        region, n = metadata.semantics.perturbation, metadata.metrics.get("n_samples")
        n_named = len(metadata.kwargs.sample_names) or None
        epsilon = region.epsilon if region.norm else None
        return cls(region.norm, epsilon, n if isinstance(n, int) else n_named, around=region.around)

    @classmethod
    def of_layer(cls, layer: Layer) -> Basis:
        """Return the budget of a sandwich and the samples of its rates: the union of the draws, all where nothing attacked."""
        n = layer.n_certified if layer.states else layer.n  # without states: of an older version, over all samples
        return cls(layer.norm, layer.epsilon, n, layer.n, layer.only_first and n < layer.n)

    @property
    def budget(self) -> str:
        """`Linf 8/255`; `L0 without bound`; `rotation ≤ 10°`; empty if the region is no ball."""
        if self.norm is None:
            return ""
        limits = f"{self.norm} without bound" if self.epsilon is None else place_text(self.norm, self.epsilon)
        return limits + self.around

    @property
    def samples(self) -> str:
        """`n 200`; `n 20 of 60`, with the reason where it is no unbiased estimate; empty where not known."""
        if self.n is None:
            return ""
        part = f" of {self.total}" if self.total not in (None, self.n) else ""
        return f"n {self.n}{part}{f', {FIRST_SAMPLES}' if self.only_first else ''}"

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.budget, self.samples)))


def basis_of(metadata: Metadata, key: str) -> Basis:
    """Return norm, epsilon and n of the metric `key`: the summary's first budget and its draws, or an assessment's own."""
    layer = next(iter(layers_in(metadata.metrics)), None)
    if layer is None or metadata.family is not None:
        return Basis.of(metadata)
    if key.startswith(("worst_case_accuracy", "certified_accuracy")) and "_accuracy_all" not in key:
        return Basis.of_layer(layer)
    all_samples = Basis(n=layer.n)
    return all_samples if key.startswith("clean_") else all_samples._replace(norm=layer.norm, epsilon=layer.epsilon)


def stated(rate: Rate, basis: Basis) -> str:
    """`66.0% [59.0%, 72.5%] (Linf 0.06, n 200)`: a rate with its interval, budget and n."""
    return f"{rate} ({basis})" if str(basis) else str(rate)


def leading_metric(metadata: Metadata) -> str | None:
    """Return the headline metric of an assessment; None if it has none."""
    return next((key for key in _candidates(metadata) if key in metadata.metrics), None)


def leading_words(metadata: Metadata) -> str:
    """Return the meaning of that metric in words; empty where there is none."""
    return _candidates(metadata).get(leading_metric(metadata) or "", "")


def leading_metrics() -> frozenset[str]:
    """Return every metric that may be a headline."""
    return frozenset(_NO_ENTRY).union(*(family.accuracy for family in families().values()))


def _candidates(metadata: Metadata) -> Mapping[str, str]:
    if metadata.name == "clean":
        return _CLEAN
    if metadata.family is None:  # the summary, or of an older version
        return _NO_ENTRY
    try:
        return {**family_of(metadata.family).accuracy, **OF_KIND[metadata.assessment_kind]}
    except UserError:  # of a plug-in that is not installed any more
        return OF_KIND[metadata.assessment_kind]
