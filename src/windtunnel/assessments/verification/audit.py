"""A second opinion on verdicts: certified samples attacked in float64, and some verdicts checked by another implementation."""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.canonical.subject import unit_of
from windtunnel.assessments.verification.falsifier import falsify, falsify_targeted
from windtunnel.assessments.verification.rows import SUFFIXES
from windtunnel.core.batches import evenly_spaced
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import names_in
from windtunnel.records.result import tensor_in

DOMAINS, SECONDS = 500, 10.0  # of the second opinion: subdomains of a search, seconds of the solver, for one sample
_OWN = "branch-and-bound"


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of the second look at one verification; samples by their names.

    attacked: certified samples that were attacked, each in the largest ball that is certified. broken: those of them with a
    counter-example. asked: verdicts that another implementation was asked for. agreed: those that it came to as well; without an
    answer it contradicts nothing. contradicted: those where it came to the opposite. unasked: why nothing was asked, empty where
    something was.
    """

    attacked: int
    broken: tuple[str, ...]
    asked: int
    agreed: int
    contradicted: tuple[str, ...]
    unasked: str = ""


class _Exact(nn.Module):
    """A module in float64 whose logits are in units of their spread, so that one tolerance fits every model."""

    def __init__(self, module: nn.Module, unit: float) -> None:
        super().__init__()
        self._module, self._unit = copy.deepcopy(module).double(), unit

    def forward(self, x: Tensor) -> Tensor:
        """Float64 (N, K)."""
        logits: Tensor = self._module(x.double())
        return logits / self._unit


def audit(verdicts: Artifacts, subject: Subject, norm: Norm, epsilon: float, certified: int, asked: int) -> Audit:
    """Look again at the verdicts of one verification.

    subject: the model with the samples of the verification, in their order. certified: how many certified samples are
    attacked at most; asked: how many verdicts another implementation is asked for, both spread over the samples. A sample
    that the model gets wrong without any change has no verdict to audit.
    """
    codes, ids = verdicts.tensor("verdicts"), subject.dataset.ids
    verified = (codes == Verdict.VERIFIED).nonzero().flatten()
    radii = torch.where(codes == Verdict.VERIFIED, epsilon, 0.0)
    if "certified_radius" in verdicts.data:
        radii = torch.maximum(radii, verdicts.tensor("certified_radius"))
    proven = radii.nonzero().flatten()
    chosen = proven[evenly_spaced(len(proven), certified)]
    broken = _attacked(subject.subset(chosen), norm, radii[chosen])
    falsified = ((codes == Verdict.FALSIFIED) & subject.clean_correct).nonzero().flatten()
    half = asked // 2
    of_verified = evenly_spaced(len(verified), asked - min(half, len(falsified)))
    indices = torch.cat([verified[of_verified], falsified[evenly_spaced(len(falsified), half)]])
    agreed, against, reason = 0, list[int](), "" if len(indices) else "no sample was verified or falsified"
    answered = 0
    for first, members in _by_author(verdicts, indices).items():
        try:
            second = _second_opinion(first, subject.subset(members), norm, epsilon)
        except IncompatibleError as error:
            reason = str(error)
            continue
        answered += len(members)
        same = second == codes[members]
        agreed += int(same.sum())
        against += members[~same & torch.isin(second, torch.tensor([Verdict.VERIFIED, Verdict.FALSIFIED]))].tolist()
    names_broken, contradicted = tuple(ids[int(chosen[i])] for i in broken), tuple(ids[i] for i in against)
    return Audit(len(chosen), names_broken, answered, agreed, contradicted, "" if answered else reason)


def _attacked(subject: Subject, norm: Norm, epsilons: Tensor) -> list[int]:
    """Places of the samples that the strongest attack of the cascade breaks, each at its own of `epsilons` (n,), all in float64."""
    if not len(subject.dataset) or Capability.AUTOGRAD not in subject.classifier.capabilities:
        return []
    unit, _ = unit_of(subject.clean_logits.double())
    exact: Classifier = replace(subject.classifier, module=_Exact(subject.classifier.module, unit).eval())
    inputs, targets = subject.dataset.inputs, subject.dataset.targets
    is_broken = torch.zeros(len(inputs), dtype=torch.bool)
    for search in (falsify, falsify_targeted):
        remaining = (~is_broken).nonzero().flatten()
        seed = derive_seed(subject.seed, "audit", search.__name__)
        if len(remaining):
            is_broken[remaining] = search(
                exact, inputs[remaining], targets[remaining], epsilons[remaining], seed, norm
            )[0]
    return is_broken.nonzero().flatten().tolist()


def _by_author(verdicts: Artifacts, indices: Tensor) -> dict[str, Tensor]:
    """Return the samples by the step that decided them."""
    names = names_in(verdicts.metadata.kwargs, "decided_by_names")
    decided = verdicts.tensor("decided_by")[indices]
    return {names[i]: indices[decided == i] for i in sorted({int(i) for i in decided if i >= 0})}


def _second_opinion(first: str, subject: Subject, norm: Norm, epsilon: float) -> Tensor:
    """Verdicts (n,) of an implementation that shares no bound with the step `first`."""
    options: dict[str, object]
    if first != _OWN:
        options = {"library": "windtunnel", "algorithm": f"{_OWN}{SUFFIXES[norm]}", "params": {"domains": DOMAINS}}
    elif norm is Norm.LINF:
        steps = ("alpha-crown", "marabou")
        options = {"library": "windtunnel", "algorithm": "cascade", "steps": steps, "timeout": SECONDS}
    else:
        options = {"library": "auto-LiRPA", "algorithm": f"alpha-crown{SUFFIXES[norm]}"}
    entry = VerificationEntry.model_validate(options)
    result = assess("audit", entry, Budget(norm=norm, epsilon=epsilon), subject)
    return tensor_in(result.data, "verdicts")
