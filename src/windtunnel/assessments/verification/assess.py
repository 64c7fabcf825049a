"""The pipeline of a verification: steps decide samples, and the contract's numbers are made of what they decided."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.task import Task
from windtunnel.assessments.two_phase import first_phase, two_phase_metrics
from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical, canonical_subject
from windtunnel.assessments.verification.cascade.attack_step import breaks
from windtunnel.assessments.verification.cascade.radius import (
    RadiusBounds,
    broken_radius,
    certified_radius,
    curve_metrics,
)
from windtunnel.assessments.verification.cascade.step import step_of
from windtunnel.assessments.verification.cascade.steps import (
    called_with,
    load_steps,
    options_read,
    proves,
    radius_steps,
    run_steps,
)
from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
from windtunnel.assessments.verification.falsifier import known_examples, without_images
from windtunnel.assessments.verification.rates import bounds_metrics, verdict_rates
from windtunnel.assessments.verification.table import ROWS
from windtunnel.core import scratch
from windtunnel.core.contracts import Algorithm, Caveat, Json, Norm, PerturbationBudget, Randomness, Semantics, Verdict
from windtunnel.core.distances import distance
from windtunnel.core.scratch import finite_samples
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget
from windtunnel.params.verification import Radius, VerificationEntry
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs, package_version
from windtunnel.records.regions import certified_samples
from windtunnel.records.result import AssessmentResult, Tensors, tensor_in, tensors_in
from windtunnel.registry.plugins import libraries, library_of

# Of a time budget: one operation of torch or of a library cannot be interrupted, and what was found is still to be written.
_KEPT_BACK = 0.05

CERTIFICATES = "certificates"  # what decided a sample that an earlier verification certified


def assess(
    name: str,
    entry: VerificationEntry,
    budget: Budget,
    subject: Subject,
    results: Mapping[str, Artifacts] | None = None,
    first: Tensors | None = None,
) -> AssessmentResult:
    """Verify that the target's class holds in the whole ball around each sample.

    A misclassified sample is falsified by its own clean input, at distance 0, and sent to no verifier. `results`: of the
    entries that `entry.on` and `entry.examples_from` name: what an attack's example breaks is falsified by it, and what an
    earlier verification certified is verified, with its bounds. Extra keys of robustness_data.pt: `lower_margins` float32 (N,),
    `decided_by` int64 (N,) into kwargs.decided_by_names, -1 for none, `timed_out` bool (N,), `subdomains` int64 (N,), those
    of branch and bound; with `entry.radius`
    `certified_radius` float32 (N,) and, for Linf, `broken_radius` float32 (N,), inf where nothing was broken; where
    a search was not finished `radius_unfinished` bool (N,), and its means are called `..._at_least`.
    """
    row = ROWS[find_algorithm(entry.library, entry.algorithm, f"verification.{name}", "verification").key]
    if row.assess is not None:
        otherwise: AssessmentResult = row.assess()(name, entry, budget, subject)
        return otherwise
    region = entry.budget.over(budget)
    assert region.epsilon is not None
    steps = row.steps_for(entry)
    if entry.time_budget is not None:
        load_steps(steps)  # before the clock starts
    deadline = time.monotonic() + (entry.time_budget or float("inf")) * (1 - _KEPT_BACK)
    canonical = canonical_subject(subject)
    bounder = Bounder(canonical.subject, region.norm, entry.batch_size, canonical.slack, deadline)
    ledger = Ledger(subject)
    task = VerificationTask(
        name, canonical, region.norm, region.epsilon, entry, deadline, bounder, steps, _probed(steps)
    )
    results, uncertified_by = results or {}, entry.on.uncertified_by if entry.on else []
    attacks = {key: result for key, result in results.items() if key not in uncertified_by}
    if attacks:
        undecided = ledger.undecided
        is_broken, examples = known_examples(canonical.subject, region.norm, region.epsilon, attacks)
        ledger.falsify(undecided[is_broken[undecided]], examples[undecided[is_broken[undecided]]], "examples")
    ball = PerturbationBudget(region.norm, region.epsilon)
    if uncertified_by:
        certified = certified_samples(uncertified_by, results, subject.dataset.ids, ball)
        ledger.verify(ledger.undecided[certified[ledger.undecided]], CERTIFICATES)
    run_steps(steps, ledger, task)
    data = {**_data(ledger, canonical, region.norm), **(first or {})}
    for key in reversed(uncertified_by):
        _add_bounds(data, ledger, results[key], certified_samples([key], results, subject.dataset.ids, ball))
    largest = None
    if entry.radius:
        radii, cut_short = _radii(data, entry.radius, ledger, task)
        data |= radii
        largest = entry.radius.max
        if cut_short.any():
            data["radius_unfinished"] = cut_short
            ids = tuple(subject.dataset.ids[i] for i in cut_short.nonzero().flatten().tolist())
            text = f"The search for {len(ids)} certified radii was not finished: they are lower than need be."
            ledger.caveats.append(Caveat("radius_cut_short", text, ids))
    for checkpoint in task.checkpoints:
        checkpoint.clear()
    names: list[Json] = list(ledger.names)
    return AssessmentResult(
        name=name,
        semantics=Semantics(_as_it_ran(row.algorithm, steps, task), ball),
        data=data,
        metrics=verification_metrics(data, ledger.names, largest),
        caveats=(*canonical.caveats, *dict.fromkeys(ledger.caveats), *bounder.caveats(), *without_images(attacks)),
        kwargs={
            **base_kwargs(subject),
            "decided_by_names": names,
            "logit_unit": canonical.unit,
            "tolerances": {step: float(f"{task.lead(step_of(step).tolerance) * canonical.unit:.3g}") for step in steps},
            **entry.model_dump(mode="json", include=options_read(row, steps), exclude_none=True),
            **({"params": dict(entry.params)} if entry.params else {}),
            "examples_from": {key: results[key].digest() for key in entry.examples_from},
            **(entry.on.digests(results) if entry.on else {}),
        },
        call_kwargs=called_with(steps, task),
        library_package=library_of(entry.library, "verification").package,
        provenance={"verifiers": _versions()} if row.of_entry else {},
    )


def _add_bounds(data: Tensors, ledger: Ledger, earlier: Artifacts, certified: Tensor) -> None:
    """Give the samples that an earlier verification `certified`, (N,) bool, and that nothing else decided, its bounds."""
    mine, theirs = earlier.common_samples(ledger.subject.dataset.ids)
    took_over = certified[mine] & (ledger.decided_by[mine] == ledger.names.index(CERTIFICATES))
    mine, theirs = mine[took_over], theirs[took_over]
    if "lower_margins" in earlier.data:
        tensor_in(data, "lower_margins")[mine] = earlier.tensor("lower_margins")[theirs]
    if "output_bounds" in earlier.data:
        for side, logits in tensors_in(data, "output_bounds").items():
            logits[mine] = earlier.tensors("output_bounds")[side][theirs]


def _probed(steps: Sequence[str]) -> frozenset[str]:
    """Return the bound methods that are tried on a few samples first: cheap ones before a stronger one."""
    bounding = [step for step in steps if step_of(step).bounds]
    return frozenset(step for step in bounding[:-1] if step_of(step).cheap)


def _versions() -> dict[str, Json]:
    """Return the versions of all libraries that a cascade may ask, by name."""
    packages = {library.name: library.package for library in libraries("verification").values() if library.package}
    return {name: version for name, package in packages.items() if (version := package_version(package))}


def _as_it_ran(algorithm: Algorithm, steps: Sequence[str], task: VerificationTask) -> Algorithm:
    """Return the registry row, stochastic where an attack drew from the seed: as a step, or for the radii that it breaks."""
    radius = task.entry.radius
    draws = any(step_of(step).falsifies for step in steps) or bool(radius and radius.attack and task.norm is Norm.LINF)
    return replace(algorithm, randomness=Randomness.SELF_SEEDED if draws else Randomness.DETERMINISTIC)


def _data(ledger: Ledger, canonical: Canonical, norm: Norm) -> Tensors:
    subject, examples = ledger.subject, ledger.examples
    return {
        **base_data(subject, ledger.verdicts),
        **counterexample_data(subject, examples, lambda: distance(norm, examples, subject.dataset.inputs)),
        "output_bounds": canonical.outputs(ledger.lower, ledger.upper),
        "runtime_per_sample": ledger.seconds,
        "lower_margins": canonical.margins(ledger.lower_margins),
        "decided_by": ledger.decided_by,
        "timed_out": ledger.timed_out,
        "subdomains": ledger.subdomains,
    }


def counterexample_data(subject: Subject, examples: Tensor, distances: Callable[[], Tensor]) -> Tensors:
    """Return the counter-examples (N, ...), NaN rows where there are none, with their predictions and their `distances` (N,)."""
    finite = finite_samples(examples) if len(examples) else torch.zeros(0, dtype=torch.bool)
    predictions, measured = torch.full((len(finite),), -1), torch.full((len(finite),), torch.nan)
    if finite.any():
        indices = finite.nonzero().flatten()
        broken = scratch.samples_at(examples, indices)
        predictions[finite] = subject.classifier.predict(broken, subject.dataset.targets[indices])
        measured[finite] = distances()[finite]
    return {"perturbed_inputs": examples, "perturbed_predictions": predictions, "perturbation_distance": measured}


def _radii(data: Tensors, radius: Radius, ledger: Ledger, task: VerificationTask) -> tuple[Tensors, Tensor]:
    """Return (the radii, bool (N,), whose search was not finished): by bounds, then what breaks, then between the two."""
    verdicts, distances = (tensor_in(data, key) for key in ("verdicts", "perturbation_distance"))
    holds = torch.where(verdicts == Verdict.VERIFIED, min(task.epsilon, radius.max), 0.0)
    bounds = RadiusBounds(holds, distances.nan_to_num(torch.inf))
    low = torch.where(task.subject.clean_correct, holds, -1.0)
    bounding, searching = radius_steps(radius, task.steps)
    if bounding is not None:
        certified_radius(bounds.certified_by(proves(bounding, task)), low, radius.max, radius.tolerance)
    attacked = radius.attack and task.norm is Norm.LINF
    if attacked:
        low, most = torch.where(low < 0, low, bounds.holds), torch.full_like(low, radius.max)
        broken_radius(bounds.broken_by(breaks(task)), most, low, radius.tolerance)
    open_ = task.subject.clean_correct & bounds.unsettled(radius.max, radius.tolerance)
    cut_short = open_ & (task.time_left <= 0)
    if searching is not None:
        search = step_of(searching).radii
        assert search is not None
        cut_short |= search(searching, bounds, ledger, task)
    radii: Tensors = {"certified_radius": bounds.holds}
    if attacked:
        radii["broken_radius"] = bounds.broken
    return radii, cut_short


def verification_metrics(
    data: Mapping[str, Tensor | dict[str, Tensor]], names: list[str], largest_radius: float | None = None
) -> dict[str, Json]:
    """Return the contract's rates with their intervals, certified accuracy, who decided, mean bounds of the logits, and the radii's curves.

    `unknown_rate` counts every sample without a verdict, `timeout_rate` those of them for which time was over.
    """
    verdicts, predictions, targets, decided, late = (
        tensor_in(data, key) for key in ("verdicts", "clean_predictions", "targets", "decided_by", "timed_out")
    )
    n, correct = len(verdicts), predictions == targets
    metrics: dict[str, Json] = dict(binomial_rate(int(correct.sum()), n).metrics("clean_accuracy"))
    metrics |= verdict_rates(verdicts, (verdicts == Verdict.VERIFIED) & correct)
    metrics |= {
        "n_samples": n,
        "decided_by": {name: int((decided == i).sum()) for i, name in enumerate(names)},
        "timeouts": int(late.sum()),
        **binomial_rate(int(late.sum()), n).metrics("timeout_rate"),
    }
    if "output_bounds" in data:
        bounds = tensors_in(data, "output_bounds")
        metrics |= bounds_metrics(bounds["lower"], bounds["upper"])
    of_earlier = {"clean", "examples", CERTIFICATES}  # what decides a sample before the entry's own steps
    earlier = torch.tensor([i for i, name in enumerate(names) if name in of_earlier], dtype=torch.int64)
    tried = ~torch.isin(decided, earlier) & (verdicts != Verdict.ERROR)
    metrics |= two_phase_metrics(data, tried, (verdicts == Verdict.VERIFIED) & correct)
    if largest_radius is not None:
        broken = tensor_in(data, "broken_radius") if "broken_radius" in data else None
        radii, finished = tensor_in(data, "certified_radius"), "radius_unfinished" not in data
        metrics |= curve_metrics(radii, correct, largest_radius, broken, finished=finished)
    return metrics


def run(task: Task[VerificationEntry]) -> AssessmentResult:
    """Run one verification."""

    def decided(all_samples: Subject) -> tuple[Tensor, Tensor]:
        region, on = task.entry.budget.over(task.budget), task.entry.on
        assert region.epsilon is not None
        assert on is not None
        attacks = {key: task.earlier[key] for key in on.survivors_of}
        broken, _ = known_examples(all_samples, region.norm, region.epsilon, attacks)
        return broken, certified_samples(on.uncertified_by, task.earlier, all_samples.dataset.ids, region)

    return assess(task.name, task.entry, task.budget, task.subject, task.earlier, first_phase(task, decided))
