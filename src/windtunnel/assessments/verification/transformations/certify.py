"""Certify or falsify a model on every transformation of a region, by branch and bound over the parameters."""

import heapq
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.attacks.transformations.search import ParameterSearch, gradient, grid, places_of
from windtunnel.assessments.verification.assess import counterexample_data, verification_metrics
from windtunnel.assessments.verification.canonical.subject import Canonical, canonical_subject
from windtunnel.assessments.verification.rows import TRANSFORMATIONS
from windtunnel.assessments.verification.transformations.convex_block import images_of
from windtunnel.assessments.verification.transformations.envelopes import envelope
from windtunnel.assessments.verification.transformations.form_network import FormNetwork
from windtunnel.assessments.verification.transformations.patches import MOST_SYMBOLS, PatchParts
from windtunnel.core.batches import Batch, batches_of
from windtunnel.core.classifier import forward_samples
from windtunnel.core.contracts import Json, PerturbationBudget, Semantics, Verdict
from windtunnel.core.seeds import seeded
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import PARAMETERS, Transformation, transformation_of
from windtunnel.core.transformed import clipped, parameter_distances, transform, unit_tensors
from windtunnel.params.entry import Budget
from windtunnel.params.verification import ParameterSplits, VerificationEntry
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.runtime.batch_runner import Checkpoint, run_batches

STEPS = ("misclassified", "attack", "branch-and-bound")  # kwargs.decided_by_names
_ROUNDING = 1e-5  # of the largest difference of logits: by so much the label must lead
_FIRST_PARTS = 16  # of the region, about
_EXACT = dict.fromkeys(("brightness", "contrast", "saturation"), 0.25)  # enclosed exactly: their splits gain little
_NARROWEST = 1e-4  # of a half range: narrower parts are not split
_PAINTED, _PAINTED_PLACES = 10, 4  # gradient steps at the places whose bounds are least, of those bounded together
_VALUES = 2**23  # numbers of one tensor while forms are carried through the network


@dataclass(frozen=True, slots=True)
class _SampleOutcome:
    """Result for one sample. radius: the verified part of the region around the identity, in half ranges. lead: the least margin.

    example: a counterexample and its parameters.
    """

    verdict: Verdict
    decided_by: int
    example: tuple[Tensor, Tensor] | None = None
    radius: float = 0.0
    domains: int = 0
    lead: float = -torch.inf
    timed_out: bool = False


def assess_transformation(name: str, entry: VerificationEntry, budget: Budget, subject: Subject) -> AssessmentResult:
    """Decide each sample: one sample a unit of work, so that a killed run continues.

    FALSIFIED by a transformed image that the model misclassifies, VERIFIED where every part of the region is bounded, UNKNOWN where
    `params.domains` or `timeout` ended the search. An occlusion has finitely many images, which the model itself decides.
    Extra keys of robustness_data.pt: `transformation_parameters` {name: float32 (N,)} of the counterexamples, NaN for none;
    `certified_radius` float32 (N,), the verified part of the region, from the identity outwards, in half ranges; `broken_radius`
    float32 (N,), the distance of the counterexample, inf for none; `lower_margins`,
    `decided_by`, `timed_out`, `subdomains` as other verifications have them.
    """
    region, params = entry.budget.over(budget), ParameterSplits.model_validate(entry.params)
    transformation = transformation_of(region.norm)
    assert transformation is not None
    assert region.epsilon is not None
    canonical = canonical_subject(subject) if transformation.kinds[0].name != "occlusion" else None
    deadline = time.monotonic() + (entry.time_budget or float("inf"))
    timeout = entry.timeout or float("inf")
    work = _SampleCertifier(transformation, region.epsilon, subject, canonical, params, timeout, deadline)
    checkpoint = Checkpoint.of(name, subject, entry.model_dump(mode="json"), str(region))
    batches = batches_of(torch.arange(len(subject.dataset)), 1, subject.seed, name)
    results = run_batches(batches, work, name=name, checkpoint=checkpoint)
    data = _data(subject, transformation, results)
    checkpoint.clear()
    names: list[Json] = list(STEPS)
    return AssessmentResult(
        name=name,
        semantics=Semantics(TRANSFORMATIONS[0].algorithm, PerturbationBudget(region.norm, region.epsilon)),
        data=data,
        metrics=verification_metrics(data, list(STEPS), region.epsilon),
        caveats=canonical.caveats if canonical else (),
        kwargs={
            **base_kwargs(subject),
            "decided_by_names": names,
            "largest_radius": region.epsilon,
            "params": params.model_dump(),
            **({"timeout": entry.timeout} if entry.timeout else {}),
        },
        call_kwargs={"region": transformation.words(region.epsilon), **params.model_dump()},
    )


def _data(subject: Subject, transformation: Transformation, results: dict[str, Tensor]) -> Tensors:
    table = transformation.table(results["parameters"])
    no_bounds = torch.full((len(subject.dataset), subject.classifier.num_classes), torch.nan)
    return {
        **base_data(subject, results["verdict"]),
        **counterexample_data(subject, results["example"], lambda: parameter_distances(transformation, table)),
        PARAMETERS: table,
        "output_bounds": {"lower": no_bounds, "upper": no_bounds.clone()},
        "runtime_per_sample": results["seconds"].float(),
        "lower_margins": results["lead"].float(),
        "decided_by": results["decided_by"],
        "timed_out": results["timed_out"],
        "subdomains": results["domains"],
        "certified_radius": results["radius"].float(),
        "broken_radius": parameter_distances(transformation, table).nan_to_num(torch.inf),
    }


@dataclass
class _SampleCertifier:
    """A unit of work: one sample."""

    transformation: Transformation
    epsilon: float
    subject: Subject
    canonical: Canonical | None
    params: ParameterSplits
    timeout: float
    deadline: float
    _network: FormNetwork | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_network": None}  # a traced module cannot be sent to a worker

    @property
    def network(self) -> FormNetwork:
        """The canonical network in float64."""
        if self._network is None:
            assert self.canonical is not None
            self._network = FormNetwork(self.canonical.subject.classifier.module, self.subject.classifier.source)
        return self._network

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Every field of `_SampleOutcome` under its name, and the seconds; of one sample."""
        started = time.monotonic()
        with seeded(batch.seed):
            outcome = self._decide(int(batch.indices), min(started + self.timeout, self.deadline))
        inputs, p = self.subject.dataset.inputs, len(self.transformation.names)
        example, parameters = outcome.example or (
            inputs.new_full(inputs.shape[1:], torch.nan),
            torch.full((p,), torch.nan),
        )
        return {
            "verdict": torch.tensor([int(outcome.verdict)]),
            "decided_by": torch.tensor([outcome.decided_by]),
            "radius": torch.tensor([outcome.radius], dtype=torch.float64),
            "domains": torch.tensor([outcome.domains]),
            "lead": torch.tensor([outcome.lead], dtype=torch.float64),
            "timed_out": torch.tensor([outcome.timed_out]),
            "example": example[None],
            "parameters": parameters[None].double(),
            "seconds": torch.tensor([time.monotonic() - started], dtype=torch.float64),
        }

    def _decide(self, i: int, late: float) -> _SampleOutcome:
        subject = self.subject
        image, label = subject.dataset.inputs[i], int(subject.dataset.targets[i])
        if not bool(subject.clean_correct[i]):
            return _SampleOutcome(Verdict.FALSIFIED, 0, (image, torch.tensor(self.transformation.identity)))
        is_occlusion = self.transformation.kinds[0].name == "occlusion"
        counterexample = self._broken_place(image, label) if is_occlusion else self._attack(image, label)
        if counterexample is not None and not (self.params.verified_range and not self.transformation.is_square):
            return _SampleOutcome(Verdict.FALSIFIED, 1, counterexample)
        if is_occlusion:  # every place was tried
            return _SampleOutcome(Verdict.VERIFIED, 2, radius=self.epsilon, lead=0.0)
        if self.transformation.is_square:
            return self._bound_places(image, label, late)
        return self._split(image, label, late, counterexample)

    def _broken_place(self, image: Tensor, label: int) -> tuple[Tensor, Tensor] | None:
        """Return (image, parameters) of the first place at which a square of one colour breaks the sample; None for none."""
        places = self._places(image)
        for part in places.split(forward_samples(image[None])):
            images = transform(self.transformation, image.expand(len(part), -1, -1, -1), part)
            is_broken = self.subject.classifier.predict(images, torch.full((len(part),), label)) != label
            if is_broken.any():
                at = int(is_broken.nonzero()[0])
                return images[at], part[at]
        return None

    def _places(self, image: Tensor) -> Tensor:
        """(M, 3): side, row and column of every square inside the image."""
        return places_of(self.transformation.side(self.epsilon), image)

    def _attack(self, image: Tensor, label: int) -> tuple[Tensor, Tensor] | None:
        """Search a counterexample: (image, parameters), confirmed by the classifier on what is stored; None where none is found."""
        problem = self._search(image, label, 1)
        if not self.transformation.is_patch and len(self.transformation.names) <= 2:
            grid(problem, points=61, refine=2, starts=3)
        else:
            gradient(problem, restarts=4, steps=10, places=61)
        parameters = problem.parameters(problem.units.double())
        return self._confirmed(image, label, parameters[0].cpu(), problem.content[0].cpu())

    def _search(self, image: Tensor, label: int, count: int) -> ParameterSearch:
        """Pose the search of the worst parameters of `count` copies of an image."""
        classifier = self.subject.classifier
        inputs = image.expand(count, *image.shape).to(classifier.device)
        return ParameterSearch.over(
            self.transformation,
            self.epsilon,
            inputs,
            torch.full((count,), label, device=inputs.device),
            classifier.module,
            classifier.criterion,
        )

    def _confirmed(
        self, image: Tensor, label: int, parameters: Tensor, content: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        stored = clipped(self.transformation, parameters.float()[None], self.epsilon)
        values = content[None] if content is not None and self.transformation.is_patch else None
        example = transform(self.transformation, image[None], stored.double(), values)
        targets = torch.tensor([label])
        is_broken = bool(self.subject.classifier.predict(example, targets) != targets)
        return (example[0], stored[0]) if is_broken else None

    @property
    def _threshold(self) -> float:
        """Margin that a bound must exceed, on the canonical network."""
        assert self.canonical is not None
        return _ROUNDING + 2 * self.canonical.slack

    def _split(self, image: Tensor, label: int, late: float, example: tuple[Tensor, Tensor] | None) -> _SampleOutcome:
        """Bound parts of the region, those nearest to the identity first, and split what is not verified.

        A counterexample, be it known before (`example`), ends the search, or with `verified_range` what lies beyond it.
        """
        exact, p = image.double(), len(self.transformation.names)
        identity, half_ranges = unit_tensors(self.transformation, torch.float64)
        side = round(_FIRST_PARTS ** (1 / p)) if p <= 2 else 1
        weights = torch.tensor(
            [_EXACT.get(kind.name, 1.0) for kind in self.transformation.kinds for _ in kind.parameters]
        )
        starts = [0.0 if is_even else -1.0 for is_even in self.transformation.is_even]
        ticks = [torch.linspace(start, 1, side + 1, dtype=torch.float64) * self.epsilon for start in starts]
        corners = torch.cartesian_prod(*[torch.arange(side)] * p).view(-1, p)
        queue: list[tuple[float, list[float], Tensor, Tensor]] = [
            (*_order(low, high), low, high)
            for low, high in (
                [torch.stack([ticks[k][c + end] for k, c in enumerate(corner)]) for end in (0, 1)] for corner in corners
            )
        ]
        heapq.heapify(queue)
        domains, least, stuck, decided_by = 0, float("inf"), float("inf"), 1 if example else 2
        limit = self._distance(example)
        together = max(1, min(16, _VALUES // ((p + 2) * max(self._width, 1))))
        while queue and domains < self.params.domains and time.monotonic() < late:
            parts = [heapq.heappop(queue) for _ in range(min(together, len(queue)))]
            parts = [part for part in parts if part[0] < limit]
            if not parts:
                queue = []
                break
            low, high = torch.stack([part[2] for part in parts]), torch.stack([part[3] for part in parts])
            form = envelope(self.transformation, exact, identity + low * half_ranges, identity + high * half_ranges)
            margins, _ = self.network.margins(form, label, self._threshold)
            domains += len(parts)
            verified = margins > self._threshold
            if verified.any():
                least = min(least, float(margins[verified].min()))
            rest = (~verified).nonzero().flatten().tolist()
            if not rest:
                continue
            middle = identity + (low + high)[rest] / 2 * half_ranges
            images = transform(self.transformation, image.expand(len(rest), -1, -1, -1), middle)
            wrong = self.subject.classifier.predict(images, torch.full((len(rest),), label)) != label
            for part in wrong.nonzero().flatten().tolist():
                counterexample = self._confirmed(image, label, middle[part])
                if counterexample is not None and self._distance(counterexample) < limit:
                    example, limit = counterexample, self._distance(counterexample)
            if example is not None and not self.params.verified_range:
                return _SampleOutcome(Verdict.FALSIFIED, decided_by, example, domains=domains)
            influence = (form.slopes[:, :p].abs().flatten(2).sum(2) + 1e-9 * (high - low)) * weights
            for k in rest:
                if float((high[k] - low[k]).max()) < _NARROWEST:
                    stuck = min(stuck, _order(low[k], high[k])[0])
                    continue
                axis, cut = self._cut(low[k], high[k], influence[k])
                upper, lower = high[k].clone(), low[k].clone()
                upper[axis] = lower[axis] = cut
                for a, b in ((low[k], upper), (lower, high[k])):
                    heapq.heappush(queue, (*_order(a, b), a, b))
            if stuck < float("inf") and self.params.verified_range:
                break
        radius = min([self.epsilon, limit, stuck, *(part[0] for part in queue)])
        is_late = bool(queue) and time.monotonic() >= late
        if example is not None:
            return _SampleOutcome(Verdict.FALSIFIED, decided_by, example, radius, domains, timed_out=is_late)
        if not queue and stuck == float("inf"):
            return _SampleOutcome(Verdict.VERIFIED, 2, None, radius, domains, least)
        return _SampleOutcome(Verdict.UNKNOWN, -1, None, radius, domains, timed_out=is_late)

    def _cut(self, low: Tensor, high: Tensor, influence: Tensor) -> tuple[int, float]:
        """Return the parameter by which a part from `low` to `high` (P,) is split, and where.

        At whole pixels, where a translation has a kink; else in the middle of the parameter of most influence.
        """
        _, half_ranges = unit_tensors(self.transformation, torch.float64)
        whole_pixels = ((low + high) / 2 * half_ranges).round() / half_ranges
        is_inside = (low + _NARROWEST < whole_pixels) & (whole_pixels < high - _NARROWEST)
        is_kink = is_inside & torch.tensor([name.startswith("translation") for name in self.transformation.names])
        axis = int((influence + is_kink * influence.sum()).argmax())
        return axis, float(whole_pixels[axis] if is_kink[axis] else (low[axis] + high[axis]) / 2)

    def _distance(self, example: tuple[Tensor, Tensor] | None) -> float:
        """Distance of a counterexample from the identity, in half ranges; inf for none."""
        if example is None:
            return float("inf")
        return float(parameter_distances(self.transformation, self.transformation.table(example[1][None])))

    def _bound_places(self, image: Tensor, label: int, late: float) -> _SampleOutcome:
        """Bound a patch at every place, attack the places that stay open, and split the values at them, level by level."""
        exact, domains, least, steps = image.double(), 0, float("inf"), _PAINTED
        parts = PatchParts.whole(self._places(image), len(image))
        symbols = min(parts.low.shape[1], MOST_SYMBOLS)
        images = max(symbols + 2, images_of(symbols) // 4)  # corners are computed in windows alone
        together = max(1, min(64, _VALUES // (images * self._width)))
        while len(parts):
            remaining = []
            for chosen in torch.arange(len(parts)).split(together):
                if domains >= self.params.domains or time.monotonic() >= late:
                    return _SampleOutcome(Verdict.UNKNOWN, -1, domains=domains, timed_out=time.monotonic() >= late)
                part = parts.at(chosen)
                form, window = part.form(exact)
                margins, slopes = self.network.margins(form, label, self._threshold, window)
                domains += len(part)
                is_open = ~(margins > self._threshold)
                least = min([least, *margins[~is_open].tolist()])
                order = margins[is_open].argsort()
                part, slopes = part.at(is_open).at(order), slopes[is_open][order]
                worst = slice(0, _PAINTED_PLACES if steps else 0)
                for searched, their_slopes, count in ((part.at(worst), slopes[worst], steps), (part, slopes, 0)):
                    if (
                        counterexample := self._broken_content(image, label, searched, their_slopes, count)
                    ) is not None:
                        return _SampleOutcome(Verdict.FALSIFIED, 2, counterexample, domains=domains)
                remaining.append(part.halves(slopes))
            parts, steps = PatchParts.joined(remaining), 0
        return _SampleOutcome(Verdict.VERIFIED, 2, None, self.epsilon, domains, least)

    def _broken_content(
        self, image: Tensor, label: int, parts: PatchParts, slopes: Tensor, steps: int
    ) -> tuple[Tensor, Tensor] | None:
        """Search a counterexample from the corner of each part at which its relaxed margin is least, by `steps` gradient steps."""
        if not len(parts):
            return None
        problem = self._search(image, label, len(parts))
        places = parts.places.to(problem.inputs)
        problem.paint(torch.arange(len(parts)), places, parts.corners(image, slopes).to(places), steps)
        worst = int(problem.best.argmax())
        is_broken = float(problem.best[worst]) > 0
        return self._confirmed(image, label, parts.places[worst], problem.content[worst].cpu()) if is_broken else None

    @property
    def _width(self) -> int:
        """Most numbers that one layer has for one image, as far as the input tells: sixteen channels of it."""
        return 16 * self.subject.dataset.inputs[0].numel()


def _order(low: Tensor, high: Tensor) -> tuple[float, list[float]]:
    """(distance of a part from the identity, in half ranges, its corner): by these parts are ordered."""
    return abs(float(torch.maximum(low, -high).clamp(min=0).max())), low.tolist()
