"""The pipeline of an empirical attack: select samples, attack them in batches, evaluate the results.

One attack, an attack with restarts and an ensemble are the same thing: runs one after another, each on the samples
that those before it did not break.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from windtunnel.assessments.attacks.adapters import CountedModel, Request, adapter_of, call_of, perturb_by_label
from windtunnel.assessments.attacks.calls import invoker_of
from windtunnel.assessments.attacks.caveats import caveats_of
from windtunnel.assessments.attacks.evaluate import evaluate
from windtunnel.assessments.attacks.fresh_draws import fresh_caveats, fresh_metrics
from windtunnel.assessments.attacks.gradients import adapted, averaged, searched_in, surrogate_of
from windtunnel.assessments.attacks.metrics import attack_metrics, transfer_metrics
from windtunnel.assessments.attacks.plan import PlannedAttack, plan_of
from windtunnel.assessments.attacks.rows import FIT_SAMPLES, Invoker
from windtunnel.assessments.attacks.state import AttackSetup, BestResults
from windtunnel.assessments.attacks.survivors import Prior, prior_of
from windtunnel.assessments.attacks.table import row_of
from windtunnel.assessments.attacks.targets import target_summary, targets_for
from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.task import Task
from windtunnel.assessments.two_phase import first_phase
from windtunnel.boundary.models.load import named_classifier
from windtunnel.boundary.params_file import configured_server
from windtunnel.core.batches import Batch, batches_of, rows_of_table
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Json, Objective, PerturbationBudget, Semantics, ThreatModel, Verdict
from windtunnel.core.distances import DISTANCE, within
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import PARAMETERS, UNIVERSAL_PATCH, transformation_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs
from windtunnel.records.files import plain_block
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.records.storage import DISTANCES
from windtunnel.registry.plugins import library_of
from windtunnel.runtime.batch_runner import Checkpoint, each_batch

if TYPE_CHECKING:
    from windtunnel.assessments.attacks.transformations.search import SharedPatch


def assess(
    name: str,
    entry: AttackEntry,
    budget: Budget,
    subject: Subject,
    prior: Mapping[str, Artifacts] | None = None,
    others: Mapping[str, Classifier] | None = None,
    first: Tensors | None = None,
    rest: Callable[[], Subject] | None = None,
) -> AssessmentResult:
    """Attack the samples that the model gets right; the others count as not robust without being attacked.

    prior: the results that `entry.on` names, as they are on disk; samples they broke within this budget are not attacked
    again, nor those they certified.
    others: the models of `entry.transfer_to`, on which the finished examples are tried. first: see `two_phase.first_phase`.
    rest: returns the assessed samples outside of the draw, on which a universal patch is fitted.

    Keys of robustness_data.pt beside the contract's: `perturbed_logits` float32 (N, K); `attacked` bool (N,);
    `broken_by` int64 (N,), index into kwargs.runs, -1 for nobody, -2 for samples misclassified without perturbation;
    `forward_passes`, `backward_passes` float32 (N,), the mean over the sample's batch; `target_classes` int64 (N,) for
    a targeted attack; `transfer_predictions`, `transfer_clean_predictions` int64 (M, N) of M others. A sample that was
    not attacked keeps its clean input, at distance 0, or the example of `prior`.
    An attack on a transformation adds `transformation_parameters`, {name: float32 (N,)}, from which the images are made; a
    universal patch `universal_patch`, float32 (C, side, side), its values.
    With `entry.adapt` or `entry.eot` an attack searches on a stand-in's gradient or a mean over draws; what counts is always
    the model's own predictions on the result.
    Raises UserError where the prior results are missing, or for targets that cannot be.
    """
    attack = _attack_of(name, entry, budget, subject, prior or {})
    state = BestResults(subject, attack.aims, attack.before, attack.budget.norm)
    if attack.row.fits and (sharing := len(state.living)):
        shared = attack.fitted(rest() if rest else subject.subset(torch.arange(0)))
        attack = replace(attack, shared=shared, sharing=sharing)
    calls = attack.search(state)
    fresh = fresh_metrics(
        subject, state.perturbed, state.attacked & within(state.distances, attack.budget.epsilon or math.inf)
    )
    transformation = transformation_of(attack.budget.norm)
    data = {
        **_data(subject, state, attack.aims),
        **({PARAMETERS: transformation.table(state.parameters)} if transformation else {}),
        **({UNIVERSAL_PATCH: attack.shared.values} if attack.shared else {}),
        **_without_images(subject, state, attack.before),
        **_tried_on(others or {}, subject, state),
        **(first or {}),
    }
    options = {  # as far as they were used
        "invoker": entry.invoker,
        "adapt": entry.adapt,
        "eot": entry.eot if entry.eot > 1 else None,
        "search_precision": entry.search_precision if entry.search_precision != "float32" else None,
        "adaptive": attack.outcome[0].record() if attack.outcome else None,
        "fitted_on": attack.shared.fitted_on if attack.shared else None,
        "transfer_to": {key: other.digest for key, other in (others or {}).items()},
        **(entry.on.digests(prior or {}) if entry.on else {}),
    }
    return AssessmentResult(
        name=name,
        semantics=attack.semantics,
        data=data,
        metrics={
            **attack_metrics(data, attack.budget.norm, attack.algorithm, subject.dataset.num_classes),
            **(transfer_metrics(data, list(others)) if others else {}),
            **fresh,
        },
        caveats=(
            *caveats_of(attack.budget, attack.runs, state.beyond, state.repaired, data, subject, attack.before),
            *fresh_caveats(fresh),
            *(caveat for outcome in attack.outcome for caveat in outcome.caveats()),
            *state.incidents.caveats(subject.dataset.ids),
        ),
        kwargs={
            **base_kwargs(subject),
            "batch_size": entry.batch_size,
            "runs": [run.name for run in attack.runs],
            "restarts": entry.restarts,
            **{key: value for key, value in options.items() if value},
        },
        call_kwargs=_calls(attack.runs, calls),
        library_package=library_of(entry.library, "attacks").package,
        provenance={"attack_libraries": sorted({run.row.algorithm.library for run in attack.runs})},
        draws=sum(int(str(run.settings.effective.get("n_restarts", 1))) for run in attack.runs),
        pictured=None if attack.before.pictured.all() else attack.before.pictured,
    )


def called_with(name: str, entry: AttackEntry, budget: Budget, subject: Subject) -> dict[str, Json]:
    """Return what `assess` would record as `call_kwargs`; nothing is attacked. Raises UserError as it does."""
    return _attack_of(name, entry, budget, subject, {}).first_calls()


def _calls(runs: Sequence[PlannedAttack], calls: list[dict[str, Json]]) -> dict[str, Json]:
    return calls[0] if len(calls) == 1 else {f"{i} {runs[i].name}": call for i, call in enumerate(calls)}


@dataclass(frozen=True, slots=True)
class PreparedAttack(AttackSetup):
    """An attack that is ready to run."""

    def search(self, state: BestResults) -> list[dict[str, Json]]:
        """Run the attacks in order, each on the survivors; return the library call of each run's first batch."""
        identity = (self.entry.model_dump(mode="json"), str(self.budget), self.before.digest())
        checkpoints, calls = list[Checkpoint](), list[dict[str, Json]]()

        def launch(run: PlannedAttack, indices: Tensor, judge: Classifier) -> Tensor:
            checkpoints.append(Checkpoint.of(f"{self.name}.{len(calls)}", self.subject, *identity))
            margins, call = self._attacked(len(calls), run, indices, judge, state, checkpoints[-1])
            calls.append(call)
            return margins

        if self.row.invoker is Invoker.ADAPTIVE:
            from windtunnel.assessments.attacks.adaptive.adapt import adapt

            self.outcome.append(adapt(self, state, launch))
        else:
            for run in self.runs:
                launch(run, state.living, self.subject.classifier)
        for checkpoint in checkpoints:
            checkpoint.clear()
        return calls

    def _attacked(
        self,
        index: int,
        run: PlannedAttack,
        indices: Tensor,
        judge: Classifier,
        state: BestResults,
        checkpoint: Checkpoint,
    ) -> tuple[Tensor, dict[str, Json]]:
        """Attack the samples at `indices` (n,); `judge` evaluates.

        Returns:
            The margin loss of each example, float (n,), positive where it breaks its sample, and the first library call.
        """
        data, margins = self.subject.dataset, torch.full((len(self.subject.dataset),), -torch.inf)
        batches = batches_of(indices, self.entry.batch_size, self.subject.seed, f"{self.name}.{run.name}.{index}")
        work, name = functools.partial(self._perturbed, run), f"{self.name}.{run.name}"
        without, incidents = rows_of_table(self._untouched), state.incidents
        for batch, result in each_batch(
            batches, work, name=name, checkpoint=checkpoint, without=without, incidents=incidents
        ):
            clean, labels = data.inputs[batch.indices], data.targets[batch.indices]
            aims = None if self.aims is None else self.aims[batch.indices]
            perturbed, parameters = result["perturbed"], result.get("parameters")
            evaluation = evaluate(judge, run.row, run.settings.budget, clean, perturbed, labels, aims, parameters)
            losses = judge.criterion.margin_loss(evaluation.logits, labels)
            # A mean over draws is lower at an example that breaks only some of them than at the clean input.
            worst = None if judge is self.subject.classifier else losses
            state.update(index, batch.indices, evaluation, result["forwards"], result["backwards"], worst)
            margins[batch.indices] = torch.where(
                evaluation.succeeded, losses.clamp(min=torch.finfo(losses.dtype).tiny), losses.clamp(max=0)
            )
        return margins[indices], self._first_call(run, batches)

    def fitted(self, rest: Subject) -> SharedPatch:
        """Fit the patch for all samples on those that the model gets right of `rest`. Raises UserError for none."""
        correct = rest.clean_correct.nonzero().flatten()
        if not len(correct):
            raise UserError(
                f"attacks.{self.name}: of the samples outside of its draw, on which {self.entry.algorithm} is fitted, the model gets "
                f"none right; set attacks.{self.name}.samples: {{n: ..., selection: random}} to leave more"
            )
        (run,), seed = self.runs, derive_seed(self.subject.seed, f"{self.name}.fit")
        count = int(str(run.settings.effective[FIT_SAMPLES]))
        samples = rest.subset(correct).choose(count, "random", seed)
        indices = torch.arange(len(samples.dataset))
        request, counted = Request.of(run.row, run.settings, samples, None, indices, seed), CountedModel(self.model)
        counted.passes = self.passes_to_fit
        with seeded(seed):
            model, criterion = averaged(counted, self.entry.eot), self.subject.classifier.criterion
            library: Any = library_of(
                self.entry.library, "attacks"
            )  # no import: the other attacks do not depend on its code
            fitted: SharedPatch = library.algorithm("SharedPatch").fit(
                request, samples.dataset.ids, model, criterion, self.entry.batch_size
            )
            return fitted

    def _perturbed(self, run: PlannedAttack, batch: Batch) -> dict[str, Tensor]:
        """Perturb one batch with the library and count the passes; all tensors (n, ...)."""
        searched = self.model
        if run.remedy is not None:
            from windtunnel.assessments.attacks.adaptive.surrogates import AmongNeighbours, Remedied

            searched = Remedied(searched, run.remedy, self.students[0] if run.remedy.student else None)
            if run.remedy.has_neighbours:
                searched = AmongNeighbours(searched, self.clean_batch)
        counted = CountedModel(searched)
        adapter = adapter_of(run.row.algorithm.library)
        with seeded(batch.seed):
            model, criterion = averaged(counted, self.entry.eot), self.subject.classifier.criterion
            request, parameters = self._request(run, batch), {}
            if self.shared is not None:
                perturbed = self.shared.content.expand_as(request.inputs)  # `evaluate` takes what is at the place
                parameters["parameters"] = self.shared.square.double().expand(len(perturbed), -1)
            elif run.row.transforms:
                perturbed, searched_parameters = adapter(request, model, criterion)  # type: ignore[call-arg]  # of Transformed
                parameters = {"parameters": searched_parameters.cpu()}
            else:
                perturbed = perturb_by_label(request, model, adapter, criterion)
        n, passes = len(batch.indices), counted.passes
        calls: float = run.remedy.calls if run.remedy else 1
        if self.shared is not None:  # the samples share what it cost to fit
            passes, calls = self.passes_to_fit, n / self.sharing
        counts = {"forwards": calls * passes.forwards / n, "backwards": calls * passes.backwards / n}
        images = perturbed.detach().float().cpu()
        return {"perturbed": images, **parameters, **{key: torch.full((n,), value) for key, value in counts.items()}}

    @property
    def _untouched(self) -> dict[str, Tensor]:
        """The clean inputs and zero passes of all samples: the result of a batch that no worker finished."""
        parameters, no_passes = self.before.parameters.double(), torch.zeros(len(self.subject.dataset))
        moved = {"parameters": parameters} if parameters.shape[1] else {}
        return {"perturbed": self.subject.dataset.inputs, **moved, "forwards": no_passes, "backwards": no_passes}

    def first_calls(self) -> dict[str, Json]:
        """Return the library call of the first batch, without calling it; by run where there are several."""
        living = BestResults(self.subject, self.aims, self.before, self.budget.norm).living
        batches = batches_of(living, self.entry.batch_size, self.subject.seed, self.name)
        return _calls(self.runs, [self._first_call(run, batches) for run in self.runs])

    def _request(self, run: PlannedAttack, batch: Batch) -> Request:
        return Request.of(run.row, run.settings, self.subject, self.aims, batch.indices, batch.seed, self.invoke)

    def _first_call(self, run: PlannedAttack, batches: Sequence[Batch]) -> dict[str, Json]:
        """Return the arguments that the library got for the first batch; the others differ in their seed and their number of samples."""
        effective = run.settings.effective
        return plain_block(call_of(self._request(run, batches[0])).recorded(effective) if batches else effective)

    @property
    def semantics(self) -> Semantics:
        """The region is that of the attack; of several only what they share, the norm and the epsilon."""
        is_single = len(self.runs) == 1
        region = self.runs[0].settings.budget if is_single else self.budget
        if len({run.row.algorithm.key for run in self.runs}) > 1:
            region = PerturbationBudget(self.budget.norm, self.budget.epsilon)
        objective = Objective.UNTARGETED if self.aims is None else Objective.TARGETED
        return Semantics(self.algorithm, region, objective, target_summary(self.entry.target_classes))


def _attack_of(
    name: str, entry: AttackEntry, budget: Budget, subject: Subject, prior: Mapping[str, Artifacts]
) -> PreparedAttack:
    where, effective = f"attacks.{name}", entry.budget.over(budget)
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "attacks")
    aims = targets_for(where, entry.target_classes, subject, name)
    classes = subject.classifier.criterion.competing_classes(subject.classifier.num_classes)
    has_gradients = Capability.AUTOGRAD in subject.classifier.capabilities
    runs = plan_of(where, entry, row_of(algorithm), effective, classes, has_gradients=has_gradients)
    if not has_gradients and algorithm.threat_model is ThreatModel.WHITE_BOX:
        algorithm = replace(algorithm, threat_model=ThreatModel.BLACK_BOX_SCORE)
    if len({run.row.algorithm.key for run in runs}) == 1:
        algorithm = replace(algorithm, randomness=runs[0].row.randomness(runs[0].settings.effective))
    model = searched_in(
        entry.search_precision, adapted(where, subject.classifier.module, surrogate_of(where, entry.adapt))
    )
    if entry.algorithm == "adaptive" and has_gradients and len(subject.dataset):
        from windtunnel.assessments.attacks.adaptive.torchscript import with_operations

        model = with_operations(model, subject.dataset.inputs[:3].to(subject.classifier.device))
    return PreparedAttack(
        name=name,
        entry=entry,
        algorithm=algorithm,
        runs=runs,
        budget=effective,
        subject=subject,
        model=model,
        aims=aims,
        before=prior_of(where, entry, subject, effective, prior),
        invoke=invoker_of(where, entry.invoker),
        row=row_of(algorithm),
    )


def _data(subject: Subject, state: BestResults, aims: Tensor | None) -> Tensors:
    predictions = subject.classifier.criterion.predict(state.logits, subject.dataset.targets)
    verdicts = torch.where(state.succeeded, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))
    lost = state.incidents.lost_samples
    failed = lost[~state.succeeded[lost]]  # what another run broke is broken
    verdicts[failed], state.attacked[failed] = int(Verdict.ERROR), False
    data: Tensors = {
        **base_data(subject, verdicts),
        "perturbed_inputs": state.perturbed,
        "perturbed_predictions": predictions,
        "perturbation_distance": state.distances,
        "perturbed_logits": state.logits,
        "clean_logits": subject.clean_logits,
        "attacked": state.attacked,
        "broken_by": state.broken_by,
        "forward_passes": state.forwards,
        "backward_passes": state.backwards,
    }
    if aims is not None:
        data["target_classes"] = aims
    return data


def _without_images(subject: Subject, state: BestResults, before: Prior) -> Tensors:
    """Return the distances of all examples where some images are not known: of these as the earlier attack measured them."""
    if before.pictured.all():
        return {}
    measured = {norm: measure(state.perturbed, subject.dataset.inputs) for norm, measure in DISTANCE.items()}
    return {
        DISTANCES: {
            norm.value: torch.where(before.pictured, size, before.distances[norm]) for norm, size in measured.items()
        }
    }


def _tried_on(others: Mapping[str, Classifier], subject: Subject, state: BestResults) -> Tensors:
    """Return the predictions of further models on the finished examples, and to the clean inputs; int64 (M, N)."""
    if not others:
        return {}
    return {
        key: torch.stack([other.predict(inputs, subject.dataset.targets) for other in others.values()])
        for key, inputs in (
            ("transfer_predictions", state.perturbed),
            ("transfer_clean_predictions", subject.dataset.inputs),
        )
    }


def run(task: Task[AttackEntry]) -> AssessmentResult:
    """Run one attack."""
    others = {
        key: named_classifier(
            f"{task.where}.transfer_to.{key}",
            directory,
            task.subject.dataset,
            task.resolved.work.device,
            configured_server(),
        )
        for key, directory in task.entry.transfer_to.items()
    }

    def decided(all_samples: Subject) -> tuple[Tensor, Tensor]:
        before = prior_of(task.where, task.entry, all_samples, task.entry.budget.over(task.budget), task.earlier)
        return before.broken, before.certified

    first = first_phase(task, decided) if task.entry.target_classes is None else {}

    def rest() -> Subject:
        return task.all_samples.without(task.subject.dataset.ids)

    return assess(task.name, task.entry, task.budget, task.subject, task.earlier, others, first, rest)
