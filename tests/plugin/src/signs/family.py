"""A family of assessments of a plug-in: what becomes of the answers where images are mirrored."""

from typing import ClassVar

from signs.entry import FlipEntry
from windtunnel.plugins import (
    Algorithm,
    AssessmentKind,
    AssessmentResult,
    Capability,
    Column,
    Family,
    PerturbationDistribution,
    Question,
    Randomness,
    Reported,
    Semantics,
    ThreatModel,
    UserError,
    Verdict,
    base_data,
    base_kwargs,
    binomial_rate,
)

MIRROR = Algorithm(
    library="signs",
    name="mirror",
    kind=AssessmentKind.STATISTICAL_SAMPLING,
    threat_model=ThreatModel.NOT_APPLICABLE,
    norm=None,
    categories=frozenset({"symmetry"}),
    randomness=Randomness.DETERMINISTIC,
    requires=frozenset({Capability.FORWARD}),
    summary="every image mirrored",
)
QUESTION = Question("What if it is mirrored?", 35, "One symmetry, tried on every sample.")


class Flips(Family[FlipEntry]):
    """The model on mirrored images."""

    name = "flips"
    stage = "flip"
    order = 55
    entry_type = FlipEntry
    figures = "signs.figures"
    headline = ("mirrored_accuracy",)
    accuracy: ClassVar = {"mirrored_accuracy": "right when mirrored"}

    def algorithms(self):
        return (MIRROR,)

    def preflight(self, plan):
        """Refuse what has no axes to mirror."""
        if not plan.dataset.is_image:
            raise UserError(f"{plan.where}: the data is tabular; images are mirrored")
        return ()

    def run(self, task):
        """Mirror every sample, and ask the model."""
        data = task.subject.dataset
        mirrored = data.inputs.flip(task.entry.axis)
        predictions = task.subject.classifier.predict(mirrored)
        right = predictions == data.targets
        codes = Verdict.CORRECT_UNDER_PERTURBATION, Verdict.MISCLASSIFIED_UNDER_PERTURBATION
        verdicts = right.long() * int(codes[0]) + (~right).long() * int(codes[1])
        clean = task.subject.clean_correct
        return AssessmentResult(
            name=task.name,
            semantics=Semantics(MIRROR, PerturbationDistribution("mirror")),
            data={
                **base_data(task.subject, verdicts),
                "perturbed_inputs": mirrored,
                "perturbed_predictions": predictions,
            },
            metrics={
                **binomial_rate(int(clean.sum()), len(clean)).metrics("clean_accuracy"),
                **binomial_rate(int(right.sum()), len(right)).metrics("mirrored_accuracy"),
            },
            kwargs=base_kwargs(task.subject),
            library_package="windtunnel-signs",
        )

    def report_section(self, kind):
        """One question, with one number."""
        return Reported(
            QUESTION,
            (Column("right when mirrored", "mirrored_accuracy", "rate"),),
            meanings={"mirrored_accuracy": "share of the samples that are right when mirrored"},
        )


FAMILY = Flips()
