"""The pipeline of a sweep: grid, perturbed predictions, critical epsilons, report."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.sweeps.curve import Sweep, critical_epsilon, epsilon_grid, sweep_metrics
from windtunnel.assessments.sweeps.engines import AttackAtEpsilon, Engine, OneGradientFGSM, called_with
from windtunnel.assessments.sweeps.table import FGSM, measure_of
from windtunnel.core.batches import Batch, Incidents, batches_of, rows_of_table
from windtunnel.core.classifier import module_digest
from windtunnel.core.contracts import Caveat, Norm, PerturbationBudget, Semantics, Verdict
from windtunnel.core.distances import distance, within
from windtunnel.core.errors import UnsoundError
from windtunnel.core.subject import Subject
from windtunnel.core.transformations import PARAMETERS, transformation_of
from windtunnel.core.transformed import parameter_distances
from windtunnel.params.entry import Budget
from windtunnel.params.sweeps import SweepEntry
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs
from windtunnel.records.layout import Layout
from windtunnel.records.metadata import numbers
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.records.tables import write_csv
from windtunnel.registry.plugins import library_of
from windtunnel.runtime.batch_runner import Checkpoint, run_batches


def assess(name: str, entry: SweepEntry, budget: Budget, subject: Subject) -> AssessmentResult:
    """Run `entry` over its epsilon grid, a batch of samples over all of it a unit of work, so that a killed run continues.

    Extra keys of robustness_data.pt: `epsilons` float32 (E,), `sweep_predictions` int64 (E, N), `critical_epsilon`
    float32 (N,) with inf for a sample that never flips, `clean_confidence` float32 (N,). `perturbed_inputs` are at the
    smallest epsilon of the grid that breaks the sample, or at the largest where none does. Logits that are not finite break it
    (prediction -1); an example outside epsilon does not. Raises UnsoundError where a sweep changed the model's weights.
    """
    algorithm = find_algorithm(entry.library, entry.algorithm, f"sweeps.{name}", "sweeps")
    norm = measure_of(algorithm, entry)
    grid, zero_added = epsilon_grid(entry.epsilons, f"sweeps.{name}")
    over_the_grid = _OverTheGrid(name, entry, norm, subject, tuple(grid), one_gradient=algorithm is FGSM)
    checkpoint, incidents = Checkpoint.of(name, subject, entry.model_dump(mode="json")), Incidents()
    results = run_batches(
        batches_of(torch.arange(len(subject.dataset)), entry.batch_size, subject.seed, name),
        over_the_grid,
        name=name,
        checkpoint=checkpoint,
        without=rows_of_table(over_the_grid.untouched),
        incidents=incidents,
    )
    inputs, predictions, critical = results["inputs"], results["predictions"].T.contiguous(), results["critical"]
    epsilons = torch.tensor(grid, dtype=torch.float32)
    targets = subject.dataset.targets
    confidence = subject.clean_logits.softmax(1).amax(1)
    sweep = Sweep(epsilons, predictions, targets, confidence, critical, subject.dataset.num_classes)
    broken = ~sweep.cumulative_correct[-1]
    verdicts = torch.where(broken, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))
    verdicts[incidents.lost_samples] = int(Verdict.ERROR)
    transformation = transformation_of(norm)
    table = {PARAMETERS: transformation.table(results["parameters"])} if transformation else {}
    data: Tensors = {
        **table,
        **base_data(subject, verdicts),
        "perturbed_inputs": inputs,
        "perturbed_predictions": subject.classifier.predict(inputs, targets),
        "perturbation_distance": parameter_distances(transformation, table[PARAMETERS])
        if transformation
        else distance(norm, inputs, subject.dataset.inputs),
        "epsilons": epsilons,
        "sweep_predictions": predictions,
        "critical_epsilon": critical,
        "clean_confidence": confidence,
    }
    region = PerturbationBudget(norm, grid[-1], entry.budget.step_size, entry.budget.steps)
    checkpoint.clear()
    return AssessmentResult(
        name=name,
        semantics=Semantics(algorithm, region),
        data=data,
        metrics=sweep_metrics(sweep, entry.thresholds.robust, entry.thresholds.moderately_fragile),
        caveats=(
            *_caveats(sweep, zero_added=zero_added, one_step=algorithm is FGSM),
            *incidents.caveats(subject.dataset.ids),
        ),
        kwargs={
            **base_kwargs(subject),
            "thresholds": entry.thresholds.model_dump(),
            "refine": entry.refine,
            "clip": entry.clip,
        },
        call_kwargs={**called_with(name, entry, norm, subject, grid[-1]), "epsilons": grid},
        library_package=library_of(entry.library, "attacks").package,
    )


@dataclass(frozen=True, slots=True)
class _OverTheGrid:
    """A unit of work: a batch of samples, at every epsilon."""

    name: str
    entry: SweepEntry
    norm: Norm
    subject: Subject
    grid: tuple[float, ...]
    one_gradient: bool

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return inputs (n, ...), predictions int64 (n, E), critical epsilons (n,)."""
        subject, entry = self.subject.subset(batch.indices), self.entry
        before = module_digest(subject.classifier.module)
        engine: Engine = (
            OneGradientFGSM(subject, clip=entry.clip)
            if self.one_gradient
            else AttackAtEpsilon(f"{self.name}.{batch.number}", entry, self.norm, subject)
        )
        inputs, parameters, predictions = self._run_grid(engine, subject)
        critical = critical_epsilon(torch.tensor(self.grid, dtype=torch.float32), predictions)
        if entry.refine:
            critical = self._bisect(critical, engine, subject, entry.refine)
        if module_digest(subject.classifier.module) != before:
            raise UnsoundError(
                f"sweeps.{self.name}: the sweep changed the model's weights or buffers; is it in eval mode?"
            )
        moved = {"parameters": parameters} if parameters.shape[1] else {}
        return {"inputs": inputs, **moved, "predictions": predictions.T.contiguous(), "critical": critical}

    @property
    def untouched(self) -> dict[str, Tensor]:
        """The clean inputs of all samples, wrong at every epsilon above 0: the result of a batch that no worker finished."""
        n, transformation = len(self.subject.dataset), transformation_of(self.norm)
        predictions = torch.full((n, len(self.grid)), -1)
        predictions[:, 0] = self.subject.clean_predictions
        return {
            "inputs": self.subject.dataset.inputs,
            **({"parameters": torch.tensor(transformation.identity).expand(n, -1)} if transformation else {}),
            "predictions": predictions,
            "critical": torch.full((n,), self.grid[1]),
        }

    def _predictions_at(
        self, engine: Engine, subject: Subject, indices: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """(perturbed inputs (n, ...), predictions int64 (n,)) of samples at an epsilon.

        A sample that was moved beyond it counts as unchanged: clipping moves values that are outside the data's range further.
        """
        perturbed, data = engine.perturb(indices, epsilon), subject.dataset
        if not transformation_of(self.norm):  # whose parameters the attack holds to the epsilon
            clean = data.inputs if len(indices) == len(data) else data.inputs[indices]
            outside = ~within(distance(self.norm, perturbed, clean), epsilon)
            if outside.any():
                perturbed = perturbed.clone()
                perturbed[outside] = clean[outside]
        return perturbed, subject.classifier.predict(perturbed, data.targets[indices])

    def _run_grid(self, engine: Engine, subject: Subject) -> tuple[Tensor, Tensor, Tensor]:
        """(perturbed inputs (N, ...), their parameters (N, P), predictions (E, N)); the first is the clean evaluation itself."""
        targets, all_indices = subject.dataset.targets, torch.arange(len(subject.dataset))
        all_predictions, inputs = [subject.clean_predictions], subject.dataset.inputs.clone()
        still_right, parameters = subject.clean_correct, engine.parameters
        for epsilon in self.grid[1:]:
            perturbed, predictions = self._predictions_at(engine, subject, all_indices, epsilon)
            if parameters.shape != engine.parameters.shape:  # known once something was transformed
                parameters = engine.parameters.clone()
            broken = still_right & (predictions != targets)
            inputs[broken], parameters[broken] = perturbed[broken], engine.parameters[broken]
            still_right = still_right & ~broken
            all_predictions.append(predictions)
        inputs[still_right], parameters[still_right] = perturbed[still_right], engine.parameters[still_right]
        return inputs, parameters, torch.stack(all_predictions)

    def _bisect(self, critical: Tensor, engine: Engine, subject: Subject, rounds: int) -> Tensor:
        """Halve the bracket between the last grid epsilon that keeps the prediction and the first that flips it."""
        high = critical.double()
        points = torch.tensor(self.grid, dtype=torch.float64)
        finite = high.isfinite()
        # Values of the grid pass through float32 on the way; the nearest point is the one that was meant.
        nearest = (high[:, None] - points[None]).abs().nan_to_num(torch.inf).argmin(1)
        low = torch.where(finite, points[(nearest - 1).clamp(min=0)], 0.0)
        for _ in range(rounds):
            middle = (low + high) / 2
            for epsilon in middle[finite].unique().tolist():
                members = (finite & (middle == epsilon)).nonzero().flatten()
                _, predictions = self._predictions_at(engine, subject, members, epsilon)
                flipped = predictions != subject.clean_predictions[members]
                high[members[flipped]] = epsilon
                low[members[~flipped]] = epsilon
        return high.float()


def _caveats(sweep: Sweep, *, zero_added: bool, one_step: bool) -> Iterator[Caveat]:
    if zero_added:
        yield Caveat("zero_added", "The epsilon grid had no 0; it was added as the clean baseline.")
    if one_step:
        yield Caveat(
            "one_step_attack", "FGSM takes one gradient step: an iterative attack breaks more at every epsilon."
        )
    if sweep.violations:
        yield Caveat(
            "not_monotone",
            f"{sweep.violations} samples are wrong at one epsilon and right at a larger one; the curve counts a "
            f"sample as broken from the first on, the raw curve is kept beside it.",
        )


def finish(artifacts: Artifacts, layout: Layout) -> None:
    """Write the series of its curve."""
    write_curve_series(artifacts, layout.plots / "sweep" / f"{artifacts.name}.csv")


def write_curve_series(sweep: Artifacts, path: Path) -> None:
    """Write a row per epsilon, 0 first: epsilon, cumulative accuracy with its interval, accuracy at this epsilon alone."""
    source = {
        "epsilon": "epsilons",
        "accuracy": "accuracy_curve",
        "ci_low": "accuracy_curve_ci_low",
        "ci_high": "accuracy_curve_ci_high",
        "raw_accuracy": "accuracy_curve_raw",
    }
    columns = [numbers(sweep.metrics, key) for key in source.values()]
    write_csv(path, tuple(source), [dict(zip(source, row, strict=True)) for row in zip(*columns, strict=True)])
