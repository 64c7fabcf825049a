"""Collect the evidence of the checks: the model, the samples, and every assessment of the run that can be read and fits them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core import scratch
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import AssessmentKind, Json, Norm, Objective, ThreatModel, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.distances import within
from windtunnel.core.errors import UserError
from windtunnel.core.scratch import by_samples, same_values
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity import NotApplicable, NotRun
from windtunnel.evaluation.summary.evidence import RegionEvidence, examples_of, indices_of, region_evidence
from windtunnel.params.load import entries
from windtunnel.params.results import Sanity
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.metadata import Metadata, SemanticsRecord
from windtunnel.records.regions import PerturbationBall, region_of
from windtunnel.records.storage import IMAGES, KEPT
from windtunnel.registry.plugins import libraries

T = TypeVar("T")
GREY_LEVELS = 255
FEW = 25


@dataclass(frozen=True)
class Assessment:
    """One assessment; `indices` int64 (n,) says where its n samples stand among those of the clean assessment."""

    name: str
    family: str
    artifacts: Artifacts
    indices: Tensor
    _distances: dict[Norm, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)

    def tensor(self, key: str) -> Tensor:
        """Return the tensor `key` of robustness_data.pt. Raises NotRun for images of which not all were kept (`Evidence.pictured`)."""
        if key in IMAGES and KEPT in self.artifacts.data:
            raise NotRun(f"of {self.name} {self.partly}")
        return self.artifacts.tensor(key)

    @property
    def partly(self) -> str:
        """Return how many images were stored, in words."""
        return f"the images of {len(self.artifacts.kept)} of {len(self.indices)} samples are kept (storage.inputs)"

    def has(self, key: str) -> bool:
        """Return True if robustness_data.pt has `key`."""
        return key in self.artifacts.data

    def distance(self, norm: Norm) -> Tensor:
        """Return the distance of each perturbed input to its clean input; (n,), inf where there is none.

        Recomputed, once, from the images; where not all were kept, as they were measured before.
        """
        if norm not in self._distances:
            self._distances[norm] = self.artifacts.distances(norm).nan_to_num(torch.inf)
        return self._distances[norm]

    def examples_inside(self, ball: PerturbationBall) -> Tensor:
        """Return which samples have a stored example inside `ball`; (n,) bool."""
        return examples_of(self.artifacts) & within(self.distance(ball.norm), ball.epsilon)

    @property
    def metadata(self) -> Metadata:
        """metadata.json."""
        return self.artifacts.metadata

    @property
    def semantics(self) -> SemanticsRecord:
        """The semantics block of metadata.json."""
        return self.metadata.semantics

    @property
    def categories(self) -> frozenset[str]:
        """The categories of its algorithm, from the semantics."""
        return frozenset(self.semantics.families)

    @property
    def calls(self) -> list[Mapping[str, Json]]:
        """Return the arguments of the library call: one map per run of the assessment."""
        block = self.metadata.call_kwargs
        nested: list[Mapping[str, Json]] = [value for value in block.values() if isinstance(value, dict)]
        return nested if nested and len(nested) == len(block) else [block]

    @property
    def options(self) -> Mapping[str, Json]:
        """Return the assessment's own record, in kwargs of metadata.json, beside the names of samples and classes."""
        return self.metadata.kwargs.extra

    @property
    def region(self) -> PerturbationBall | None:
        """The ball it worked in."""
        return region_of(self.artifacts)

    @property
    def ball(self) -> PerturbationBall:
        """The ball of one that is known to have worked in one."""
        assert self.region is not None
        return self.region

    @property
    def row(self) -> AttackRow | None:
        """Return the attack's registry row; None for anything but an attack of the attacks table."""
        library, algorithm = libraries("attacks").get(self.metadata.library), self.metadata.algorithm
        if library and library.row_of and self.artifacts.kind is AssessmentKind.EMPIRICAL_ATTACK:
            row: AttackRow = library.row_of()(algorithm)
            return row
        return ROWS.get((self.metadata.library, algorithm))

    @property
    def minimum_norm(self) -> bool:
        """Return True if the attack minimises the distance itself."""
        return self.semantics.minimum_norm

    @property
    def shows_failures(self) -> bool:
        """Return True if the stored example of an unbroken sample is the last iterate; some return the clean input instead."""
        return self.row is not None and self.family == "attacks" and not self.row.keeps_clean

    @property
    def right(self) -> Tensor:
        """Return a mask of the samples that are classified correctly on clean inputs; (n,) bool."""
        return self.tensor("clean_predictions") == self.tensor("targets")

    @property
    def succeeded(self) -> Tensor:
        """Return a mask of the broken samples; (n,) bool."""
        return self.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED

    @property
    def tried(self) -> Tensor:
        """Which samples it was run on; (n,) bool."""
        return self.tensor("attacked") if self.has("attacked") else self.right

    def named(self, chosen: Tensor) -> list[str]:
        """Names of the samples at `chosen`: bool (n,), or indices."""
        return _names_at(self.artifacts.sample_names, chosen)

    @property
    def iterative(self) -> bool:
        """A gradient attack of more than one step."""
        return self.gradient and bool(self.categories & {"iterative", "optimization", "ensemble"})

    @property
    def gradient(self) -> bool:
        """A white-box attack."""
        return self.semantics.threat_model == ThreatModel.WHITE_BOX

    @property
    def one_step(self) -> bool:
        """FGSM and its like."""
        return self.gradient and self.categories == {"gradient_sign"}


@dataclass(frozen=True)
class Evidence:
    """Evidence that is available to a check. Passes over the model are made once and shared between checks (`once`).

    partial: by name, of which assessments a check could look at some images alone, in words.
    """

    subject: Subject
    clean: Artifacts
    params: Params
    assessments: tuple[Assessment, ...]
    unusable: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # what each `compute` of `once` gave
    train: Dataset | None = None
    partial: dict[str, str] = field(default_factory=dict)

    @property
    def few(self) -> int:
        """On how many samples a check of the profile standard attacks: FEW, or `sanity.samples` in the profile full."""
        samples = self.params.sanity.samples
        return samples if self.params.sanity.profile == "full" else min(FEW, samples)

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the N samples."""
        return self.data.ids

    @property
    def data(self) -> Dataset:
        """The N samples."""
        return self.subject.dataset

    @property
    def classifier(self) -> Classifier:
        """The model under assessment."""
        return self.subject.classifier

    def once(self, key: str, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, computed at the first call under `key`."""
        if key not in self.notes:
            self.notes[key] = compute()
        value: T = self.notes[key]
        return value

    def pictured(self, assessment: Assessment) -> Assessment:
        """Return the assessment restricted to samples whose images were kept; self if all were.

        That it is not all of them is noted in `partial`, and told with what the check finds.
        """
        image_rows = assessment.artifacts.pictured
        if image_rows is assessment.artifacts:
            return assessment
        self.partial[assessment.name] = assessment.partly
        return Assessment(assessment.name, assessment.family, image_rows, assessment.indices[assessment.artifacts.kept])

    def of(self, *families: str) -> list[Assessment]:
        """Return the assessments of these families. Raises NotApplicable for none asked for, NotRun for none that is usable."""
        matching = [assessment for assessment in self.assessments if assessment.family in families]
        return matching or self._refuse(families, f"params.yaml has no entry of {' or '.join(families)}")

    def _refuse(self, families: tuple[str, ...], reason: str) -> NoReturn:
        """Raise NotRun where an assessment of these families is not usable, else NotApplicable for `reason`."""
        lost = [f"{name}: {why}" for name, why in self.unusable.items() if self.families.get(name) in families]
        raise NotRun("; ".join(lost)) if lost else NotApplicable(reason)

    def attacks(self, keep: Callable[[Assessment], bool] = lambda _: True, what: str = "attack") -> list[Assessment]:
        """Untargeted attacks and query attacks that `keep` accepts; raises as `of` does, naming `what`."""
        families = ("attacks", "queries")
        matching = [
            p
            for p in self.of(*families)
            if p.artifacts.kind == AssessmentKind.EMPIRICAL_ATTACK
            and p.semantics.objective is Objective.UNTARGETED
            and keep(p)
        ]
        return matching or self._refuse(families, f"no {what} among the assessments")

    def bounded(self, keep: Callable[[Assessment], bool] = lambda _: True, what: str = "attack") -> list[Assessment]:
        """Attacks that take an epsilon in a pixel norm."""
        return self.attacks(
            lambda p: (
                p.region is not None
                and p.region.transformation is None
                and not p.minimum_norm
                and (p.row is None or bool(p.row.epsilon) or "ensemble" in p.categories)
                and keep(p)
            ),
            f"{what} with an epsilon",
        )

    def everywhere(self, assessment: Assessment, mask: Tensor) -> Tensor:
        """Return a mask over a piece's samples (n,) as one over all samples (N,)."""
        full_mask = torch.zeros(len(self.ids), dtype=torch.bool)
        full_mask[assessment.indices[mask]] = True
        return full_mask

    def union(self, assessments: Iterable[Assessment], choose: Callable[[Assessment], Tensor]) -> Tensor:
        """(N,) bool: chosen in any of the pieces."""
        full_mask = torch.zeros(len(self.ids), dtype=torch.bool)
        for assessment in assessments:
            full_mask |= self.everywhere(assessment, choose(assessment))
        return full_mask

    def present(self, assessments: Iterable[Assessment]) -> Tensor:
        """(N,) bool: among the samples of any of the pieces."""
        return self.union(assessments, lambda p: torch.ones(len(p.indices), dtype=torch.bool))

    def covered(self, assessments: Iterable[Assessment]) -> Tensor:
        """(N,) bool: right without perturbation, and tried by any of the pieces or broken before it came to them."""
        return self.union(assessments, lambda p: p.right & (p.tried | p.succeeded))

    def named(self, chosen: Tensor) -> list[str]:
        """Names of the samples at `chosen`: bool (N,), or of the first samples alone, or indices."""
        return _names_at(self.ids, chosen)

    @cached_property
    def regions(self) -> list[PerturbationBall]:
        """Every ball an attack worked in, once."""
        attacks = [p for p in self.assessments if p.family in ("attacks", "queries")]
        return sorted({p.region for p in attacks if p.region is not None}, key=lambda r: (r.norm, r.epsilon))

    @cached_property
    def sandwiched(self) -> RegionEvidence:
        """The evidence at the global budget, or at the first budget that an attack searched. Raises NotApplicable for none."""
        artifacts = [p.artifacts for p in self.assessments]
        budget = self.params.budget
        for region in (PerturbationBall(budget.norm, budget.epsilon), *self.regions):
            result = region_evidence(region, self.clean, artifacts)
            if result.drawn.any():
                return result
        raise NotApplicable("no attack at any budget")

    @cached_property
    def eight_bit(self) -> bool:
        """Return True if the samples are images whose values are whole grey levels of 1/255."""
        return self.data.is_image and float(by_samples(_off_grey, self.data.inputs).max()) < 1e-3

    @property
    def verifications(self) -> list[Assessment]:
        """The verifications; raises as `of` does."""
        return self.of("verification")

    def probe_indices(self, n: int | None = None) -> Tensor:
        """Return indices of the samples that are attacked again: the first `n` that the model gets right, by default `sanity.samples`."""
        return self.subject.clean_correct.nonzero().flatten()[: self.params.sanity.samples if n is None else n]

    def probe_samples(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the inputs and the labels of these samples."""
        indices = self.probe_indices(n)
        return self.data.inputs[indices], self.data.targets[indices]


def collect(
    params: Params, subject: Subject, clean: Artifacts, directory: Path, train: Dataset | None = None
) -> Evidence:
    """Read the assessments that params.yaml names; what cannot be read, or is of other samples, is noted, not raised.

    train: the training split, where it is known. A Python `predict` may get `sanity.queries` queries from here on, half of them
    from the witness; a check that needs more is not run.
    """
    if isinstance(module := subject.classifier.module, PredictFunction):
        module.allowed = module.queries_asked + params.sanity.queries - witness_queries(params.sanity)
    assessments, unusable, foreign, families = [], {}, {}, {}
    for family, name, _ in entries(params):
        families[name] = family
        try:
            artifacts = read_artifacts(directory / name, run_times=False)
            if artifacts.metadata.failure:
                continue  # the summary names it among the hard failures
            indices = indices_of(artifacts, subject.dataset.ids)
        except UserError as error:
            unusable[name] = str(error)
            if "is not in the clean assessment" in str(error):
                foreign[name] = "has samples that the clean assessment does not have"
            continue
        if around := artifacts.metadata.semantics.perturbation.around:
            unusable[name] = f"searches{around}, which no check looks at"
        elif difference := _other_samples(artifacts, subject, indices):
            unusable[name] = foreign[name] = difference
        else:
            assessments.append(Assessment(name, family, artifacts, indices))
    return Evidence(subject, clean, params, tuple(assessments), unusable, foreign, families, train=train)


def witness_queries(settings: Sanity) -> int:
    """Return how many queries of a Python function are kept for the witness: half of `sanity.queries`."""
    return settings.queries // 2


def _off_grey(inputs: Tensor) -> Tensor:
    """Return the largest distance of each input's values from a whole grey level; (n,), in levels."""
    levels = (inputs * GREY_LEVELS).flatten(1)
    return (levels - levels.round()).abs().amax(1)


def _other_samples(artifacts: Artifacts, subject: Subject, indices: Tensor) -> str:
    """In which of inputs and labels an assessment differs from the clean one; empty for in neither."""
    image_indices = indices[artifacts.kept]
    if not same_values(artifacts.tensor("clean_inputs"), scratch.samples_at(subject.dataset.inputs, image_indices)):
        return "its clean inputs are not those of the clean assessment"
    if not torch.equal(artifacts.tensor("targets"), subject.dataset.targets[indices]):
        return "its targets are not those of the clean assessment"
    return ""


def _names_at(names: Sequence[str], chosen: Tensor) -> list[str]:
    indices = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen
    return [names[i] for i in indices.tolist()]


def numbers(metrics: Mapping[str, Json]) -> dict[str, float]:
    """Return the plain numbers among metrics."""
    return {k: float(v) for k, v in metrics.items() if isinstance(v, int | float) and not isinstance(v, bool)}
