"""A family of assessments of a plug-in: what becomes of the answers where images are mirrored."""

from windtunnel.plugins import (
    Algorithm,
    AssessmentKind,
    AssessmentResult,
    Capability,
    Column,
    Family,
    Lazy,
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
ALGORITHMS = (MIRROR,)
QUESTION = Question("What if it is mirrored?", 35, "One symmetry, tried on every sample.")
REPORTED = Reported(
    QUESTION,
    (Column("right when mirrored", "mirrored_accuracy", "rate"),),
    meanings={"mirrored_accuracy": "share of the samples that are right when mirrored"},
)


def preflight(where, entry, budget, classifier, dataset):
    """Refuse what has no axes to mirror."""
    if not dataset.is_image:
        raise UserError(f"{where}: the data is tabular; images are mirrored")


def run(task):
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
        data={**base_data(task.subject, verdicts), "perturbed_inputs": mirrored, "perturbed_predictions": predictions},
        metrics={
            **binomial_rate(int(clean.sum()), len(clean)).metrics("clean_accuracy"),
            **binomial_rate(int(right.sum()), len(right)).metrics("mirrored_accuracy"),
        },
        kwargs=base_kwargs(task.subject),
        library_package="windtunnel-signs",
    )


FAMILY = Family(
    name="flips",
    stage="flip",
    order=55,
    entry=Lazy("signs.entry:FlipEntry"),
    algorithms=Lazy("signs.family:ALGORITHMS"),
    preflight=Lazy("signs.family:preflight"),
    run=Lazy("signs.family:run"),
    reported=Lazy("signs.family:REPORTED"),
    figures="signs.figures",
    visualisers=(),
    headline=("mirrored_accuracy",),
    accuracy={"mirrored_accuracy": "right when mirrored"},
)
