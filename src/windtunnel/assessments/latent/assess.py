"""The pipeline of a latent assessment: encode, generate, search, measure; for one classifier or for several."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.latent.correlate import correlations, few_classifiers
from windtunnel.assessments.latent.examine import decode, examine, plan_of, predict_codes
from windtunnel.assessments.latent.metrics import (
    accuracy,
    at_epsilon,
    changes,
    conventional_metrics,
    distributions,
    mean_with_interval,
    per_class,
    side_metrics,
    summary,
    value_metrics,
)
from windtunnel.assessments.latent.noise import log_likelihood, scaled_norm, shrink
from windtunnel.assessments.latent.search import LINF, SCALED_L2, Geometry, Problem, minimum_search
from windtunnel.assessments.latent.table import LATENT_PGD
from windtunnel.assessments.latent.tables import ClassifierMetrics
from windtunnel.assessments.task import Task
from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.boundary.generators.load import generators_in, load_generators
from windtunnel.boundary.generators.quality import Quality, read_quality
from windtunnel.boundary.models.load import named_classifier
from windtunnel.boundary.params_file import configured_server
from windtunnel.core.batches import Batch, batches_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Caveat, Json, Norm, PerturbationBudget, Semantics, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.distances import within
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.params.latent import Conventional, Encoding, LatentEntry
from windtunnel.params.model import OtherModel
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.metadata import number
from windtunnel.records.result import AssessmentResult, Tensors, tensor_in, tensors_in
from windtunnel.records.tables import written
from windtunnel.runtime.batch_runner import Checkpoint, run_batches

# What `examine` calls otherwise than robustness_data.pt.
_RENAMED = {
    "inputs": "reconstructed_inputs",
    "predictions": "reconstructed_predictions",
    "distances": "perturbation_distance",
}
RECONSTRUCTION_GAP = 0.05  # LRA this far under clean accuracy: the generator, not the classifier, is what is measured
CODE_NORM_GAP = 0.1  # the mean scaled norm of 16-dimensional draws of N(0, I) is .98, of 64-dimensional ones 1.00
BATCH_PROBE, BATCH_TOLERANCE = 16, 1e-3
# What the metrics of one decay epsilon are computed from.
MOVED = ("distances", "decayed_inputs", "perturbed_latents", "perturbed_inputs", "perturbed_predictions")
PICTURED = 8  # of each side, whose noisy images are kept: four times the images of all samples would be too many


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes and images that every classifier is evaluated on.

    latents (N, n_L): codes of the samples. generated (G, n_L), generated_classes (G,): searched codes of N(0, I).
    accuracy_latents, accuracy_classes: the many that are only classified, for LGA.
    """

    latents: Tensor
    generated: Tensor
    generated_classes: Tensor
    accuracy_latents: Tensor
    accuracy_classes: Tensor


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of one classifier on the codes, for the samples of `subject`; see `examine` and `conventional`."""

    entry: LatentEntry
    subject: Subject
    codes: Codes
    reconstruction: Mapping[str, Tensor]
    generation: Mapping[str, Tensor]
    accuracy_predictions: Tensor
    conventional: Mapping[str, Tensor]

    @property
    def sides(self) -> dict[str, tuple[Tensor, Mapping[str, Tensor], Tensor]]:
        """(codes, what was found around them, their classes) of the generated images, and of the samples where any were encoded."""
        codes, targets = self.codes, self.subject.dataset.targets
        sides = {"reconstruction": (codes.latents, self.reconstruction, targets)} if len(codes.latents) else {}
        return {**sides, "generation": (codes.generated, self.generation, codes.generated_classes)}


def assess(
    name: str,
    entry: LatentEntry,
    subject: Subject,
    generators: FittedGenerator | None,
    quality: Quality | None = None,
    others: Mapping[str, Classifier] | None = None,
    all_samples: Subject | None = None,
) -> AssessmentResult:
    """Run `entry` for the subject's classifier and for `others`, on the same codes.

    all_samples: all assessed samples; where `entry` encodes none, their labels say how often each class is generated, and their
    predictions what the clean accuracy is.

    Extra keys of robustness_data.pt, for N samples: `latents`, `perturbed_latents` (N, n_L), `reconstructed_inputs`,
    `decayed_inputs` (N, ...), `reconstructed_predictions`, `decayed_predictions` (N,), `noisy_predictions` (N, E, D),
    `noisy_latents` (N, E, n_L), `llar_log_likelihood` (N,); the dictionary `generated` with the same of G generated images,
    `generated_accuracy`, `conventional`, and `model_<i>` for each further classifier; `pictures`, noisy images of a few.
    `perturbation_distance` is the scaled latent norm, inf where no change of class was found. What is found at a further decay
    epsilon has the prefix `epsilon_<e>.`; `broken_within` bool (N, R) where there are several bounds. `reference_targets` and
    `reference_predictions` (M,) stand in for no samples.
    Raises UserError without generators or without the encoder asked for, UnsoundError where something gives NaN.
    """
    if generators is None:
        text = "there are no generative models; set generators.source: train, or bring a function"
        raise UserError(f"latent.{name}: {text}")
    generators = generators.to(subject.classifier.device)
    generators.require_length_matters(f"latent.{name}")
    # With no samples to encode, classes and clean accuracy are still those of the data.
    reference = subject if len(subject.dataset) or all_samples is None else all_samples
    codes = _codes(name, entry, subject, reference, generators)
    findings = _findings(name, "this run", entry, reference, generators, codes)
    rows, extra = [_row("this run", findings)], {}
    for index, (label, classifier) in enumerate((others or {}).items(), 1):
        other = _findings(name, label, entry, _as_subject(reference, classifier), generators, codes)
        rows.append(_row(label, other))
        extra[f"model_{index}"] = _kept_of_model(other)
    metrics: dict[str, Json] = {
        **_metrics(findings),
        **(quality.model_dump() if quality else {}),
        **({"models": written(rows), "correlations": written(correlations(rows))} if others else {}),
    }
    options = entry.model_dump(mode="json", include={"bounded", "minimum", "encoding", "conventional", "noise_draws"})
    return AssessmentResult(
        name=name,
        semantics=Semantics(LATENT_PGD, _region(entry)),
        data={**_data(findings, subject, generators), **extra},
        metrics=metrics,
        caveats=(*_caveats(findings, generators, metrics), *few_classifiers(rows)),
        kwargs={
            **base_kwargs(subject),
            "models": ["this run", *(others or {})],
            "noise_levels": list(entry.noise_levels),
            **_values(entry),
            "decay": generators.decay,
        },
        call_kwargs={
            "latents": codes.latents,
            "classes": subject.dataset.targets,
            "generated": codes.generated,
            **options,
        },
        provenance={
            "generators": generators.source,
            "generators_digest": generators.digest,
            "model_digests": {label: c.digest for label, c in (others or {}).items()},
        },
    )


def _region(entry: LatentEntry) -> PerturbationBudget:
    search, rho = entry.bounded, entry.bounded.rho[0]
    return PerturbationBudget(Norm.LATENT_L2, rho, search.step_size * rho, search.steps)


def _values(entry: LatentEntry) -> dict[str, Json]:
    """Return the values that the plain metrics are of, and all of them where there are several."""
    epsilons, rhos = list(entry.decay_epsilon), list(entry.bounded.rho)
    return {
        "decay_epsilon": epsilons[0],
        "rho": rhos[0],
        **({"decay_epsilons": [*epsilons]} if len(epsilons) > 1 else {}),
        **({"rhos": [*rhos]} if len(rhos) > 1 else {}),
    }


def _codes(
    name: str, entry: LatentEntry, subject: Subject, reference_samples: Subject, generators: FittedGenerator
) -> Codes:
    data, device = subject.dataset, subject.classifier.device
    if len(data) and entry.encoding.by == "encoder" and not generators.has_encoder:
        raise UserError(
            f"latent.{name}.encoding.by: encoder: the generative model has none; auto searches the codes, and samples: {{n: 0}} "
            f"needs no codes of real images"
        )

    def work(batch: Batch) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(batch.seed)
        inputs, classes = data.inputs[batch.indices].to(device), data.targets[batch.indices].to(device)
        return {"latents": encode(generators, inputs, classes, entry.encoding, generator).cpu()}

    batches = batches_of(torch.arange(len(data)), entry.batch_size, subject.seed, f"{name}.encode")
    encoded = run_batches(batches, work, name=f"{name}: encode")
    latents = encoded["latents"] if len(data) else torch.zeros(0, generators.latent_dim)
    generator = torch.Generator().manual_seed(derive_seed(subject.seed, name, "generate"))
    n_classes = data.num_classes
    drawn = [generators.draw(n, generator) for n in (entry.generated, entry.codes)]
    classes = [by_frequency(reference_samples.dataset.targets, n_classes, n) for n in (entry.generated, entry.codes)]
    return Codes(latents, drawn[0], classes[0], drawn[1], classes[1])


def by_frequency(targets: Tensor, num_classes: int, n: int) -> Tensor:
    """`n` class indices, sorted, in the frequency of `targets`: shares rounded by largest remainder."""
    shares = torch.bincount(targets, minlength=num_classes).double() * n / len(targets)
    counts = shares.floor().long()
    largest = (shares - counts).argsort(descending=True, stable=True)[: n - int(counts.sum())]
    counts[largest] += 1
    return torch.arange(num_classes).repeat_interleave(counts)


def _findings(
    name: str, label: str, entry: LatentEntry, subject: Subject, generators: FittedGenerator, codes: Codes
) -> Findings:
    """Examine one classifier. The seeds do not depend on `label`: all classifiers see the same noise and starts."""
    classifier, data = subject.classifier, subject.dataset
    identity, checkpoints = (label, entry.model_dump(mode="json"), generators.digest), []

    def search(side: str, latents: Tensor, classes: Tensor) -> dict[str, Tensor]:
        checkpoints.append(Checkpoint.of(f"{name}.{side}", subject, *identity))
        batches = batches_of(torch.arange(len(latents)), entry.batch_size, subject.seed, f"{name}.{side}")

        def work(batch: Batch) -> dict[str, Tensor]:
            indices = batch.indices
            findings = examine(entry, generators, classifier, latents[indices], classes[indices], batch.seed)
            if entry.conventional and side == "reconstruction":
                inputs, labels, span = data.inputs[indices], classes[indices], data.value_range
                pixels = conventional(entry.conventional, classifier, inputs, labels, span, batch.seed)
                findings |= {f"conventional.{key}": value for key, value in pixels.items()}
            return findings

        return run_batches(batches, work, name=f"{name}: {label}, {side}", checkpoint=checkpoints[-1])

    generation = search("generation", codes.generated, codes.generated_classes)
    results = (
        search("reconstruction", codes.latents, data.targets)
        if len(codes.latents)
        else {key: value[:0] for key, value in generation.items()}
    )
    latents, classes = (x.to(classifier.device) for x in (codes.accuracy_latents, codes.accuracy_classes))
    predictions = predict_codes(generators, classifier, latents, classes)
    for checkpoint in checkpoints:
        checkpoint.clear()
    prefix = "conventional."
    pixels = {key.removeprefix(prefix): value for key, value in results.items() if key.startswith(prefix)}
    reconstruction = {key: value for key, value in results.items() if not key.startswith(prefix)}
    return Findings(entry, subject, codes, reconstruction, generation, predictions, pixels)


def _as_subject(subject: Subject, classifier: Classifier) -> Subject:
    """Return the same samples under another classifier; its clean predictions are computed here, once."""
    logits = classifier.logits(subject.dataset.inputs)
    clean_predictions = classifier.criterion.predict(logits, subject.dataset.targets)
    return replace(subject, classifier=classifier, clean_logits=logits, clean_predictions=clean_predictions)


def _core_metrics(findings: Findings) -> dict[str, Json]:
    """Return the eight metrics and their conventional counterparts of one classifier."""
    entry, subject, codes = findings.entry, findings.subject, findings.codes
    rhos = entry.bounded.rho
    clean = binomial_rate(int(subject.clean_correct.sum()), len(subject.dataset))
    lga = accuracy(findings.accuracy_predictions, codes.accuracy_classes)
    block: dict[str, Json] = {**clean.metrics("clean_accuracy"), **lga.metrics("lga")}
    for side, (_, data, classes) in findings.sides.items():
        block |= {**side_metrics(side, data, classes, rhos[0]), **value_metrics(side, data, entry.decay_epsilon, rhos)}
    if entry.conventional and findings.conventional:
        bounds = {norm: bounds_of(entry.conventional, norm) for norm in GEOMETRY}
        block |= conventional_metrics(findings.conventional, subject.dataset.targets, bounds)
    return block


def _metrics(findings: Findings) -> dict[str, Json]:
    entry, dataset, codes = findings.entry, findings.subject.dataset, findings.codes
    factor = shrink(entry.decay_epsilon[0])
    of_sides = {side: (data, classes) for side, (_, data, classes) in findings.sides.items()}
    of_codes = (findings.accuracy_predictions, codes.accuracy_classes)
    block: dict[str, Json] = {
        **_core_metrics(findings),
        "n_samples": len(codes.latents),
        "n_generated": len(codes.generated),
        "n_codes": len(codes.accuracy_classes),
        "noise_levels": list(entry.noise_levels),
        **_values(entry),
        "distributions": {side: distributions(z, data, factor) for side, (z, data, _) in findings.sides.items()},
        "per_class": per_class(dataset.class_names, of_sides, of_codes, entry.bounded.rho[0]),
    }
    if len(codes.latents):
        error = scaled_norm(findings.reconstruction["inputs"] - dataset.inputs)
        block |= {
            **mean_with_interval("code_norm", scaled_norm(codes.latents)),
            "reconstruction_error": float(error.mean()),
            "reconstruction_error_distribution": summary(error),
        }
    return block


def metrics_from(entry: LatentEntry, data: Tensors, subject: Subject) -> dict[str, Json]:
    """Return the metrics of the subject's classifier from robustness_data.pt alone, as `assess` made them."""
    generated, codes = (tensors_in(data, key) for key in ("generated", "generated_accuracy"))
    latents, classes = generated["latents"], generated["classes"]
    keys = generated.keys() - {"latents", "classes"}
    reconstruction = {key: tensor_in(data, _RENAMED.get(key, key)) for key in keys}
    if "reference_targets" in data:
        targets, predictions = (tensor_in(data, f"reference_{key}") for key in ("targets", "predictions"))
        dataset = replace(subject.dataset, inputs=targets, targets=targets)
        subject = replace(subject, dataset=dataset, clean_predictions=predictions)
    all_codes = Codes(tensor_in(data, "latents"), latents, classes, latents[:0], codes["classes"])
    pixels = tensors_in(data, "conventional")
    return _metrics(Findings(entry, subject, all_codes, reconstruction, generated, codes["predictions"], pixels))


def _row(label: str, findings: Findings) -> ClassifierMetrics:
    core = {**_core_metrics(findings), **_image_changes(findings)}
    return ClassifierMetrics.of(label, {key: value for key, value in core.items() if not isinstance(value, list)})


def _image_changes(findings: Findings) -> dict[str, Json]:
    """Mean distance of the found examples in the image, per side: the paper's third finding is about robust classifiers."""
    block: dict[str, Json] = {}
    epsilons = findings.entry.decay_epsilon
    for index, epsilon in enumerate(epsilons):
        for side, (latents, data, _) in findings.sides.items():
            epsilon_data = {key: data[f"{at_epsilon(epsilon) if index else ''}{key}"] for key in MOVED}
            moved = changes(latents, epsilon_data, shrink(epsilon))
            for norm in ("l2", "l1"):
                values, name = moved[f"image_change_{norm}"], f"image_change_{norm}_{side}"
                block |= {} if index else mean_with_interval(name, values)
                if len(epsilons) > 1:
                    block |= mean_with_interval(f"{name}_epsilon_{epsilon:g}", values)
    return block


def _data(findings: Findings, subject: Subject, generators: FittedGenerator) -> Tensors:
    entry, codes, mine = findings.entry, findings.codes, findings.reconstruction
    broken = within(mine["distances"], entry.bounded.rho[0])
    likelihood = log_likelihood(mine["distances"], entry.decay_epsilon[0], generators.latent_dim)
    reference = {
        "reference_targets": findings.subject.dataset.targets,
        "reference_predictions": findings.subject.clean_predictions,
    }
    return {
        **base_data(subject, torch.where(broken, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))),
        **{_RENAMED.get(key, key): value for key, value in mine.items()},
        **_broken_within(entry, mine),
        "latents": codes.latents,
        "llar_log_likelihood": likelihood,
        "generated": {"classes": codes.generated_classes, "latents": codes.generated, **findings.generation},
        "generated_accuracy": {"classes": codes.accuracy_classes, "predictions": findings.accuracy_predictions},
        "conventional": {**findings.conventional},
        **({} if len(subject.dataset) else reference),
        **(_pictures(findings, generators) if subject.dataset.is_image else {}),
    }


def _broken_within(entry: LatentEntry, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whether each sample is broken within each of several bounds, (N, R), at each decay epsilon; nothing for one bound."""
    rhos, epsilons = entry.bounded.rho, entry.decay_epsilon
    block: dict[str, Tensor] = {}
    for prefix in ("", *map(at_epsilon, epsilons[1:])) if len(rhos) > 1 else ():
        block[f"{prefix}broken_within"] = torch.stack([within(mine[f"{prefix}distances"], rho) for rho in rhos], 1)
    return block


def _pictures(findings: Findings, generators: FittedGenerator) -> Tensors:
    """Return the first noisy image (P, E, ...) at each level of a few samples and generated images."""
    pictures: dict[str, Tensor] = {}
    device = findings.subject.classifier.device
    for side, (_, data, classes) in findings.sides.items():
        shown, levels = one_of_each(classes, PICTURED), data["noisy_latents"].shape[1]
        noisy = data["noisy_latents"][shown].flatten(0, 1).to(device)
        images = decode(generators, noisy, classes[shown].repeat_interleave(levels).to(device))
        pictures |= {f"{side}_rows": shown, f"{side}_noisy": images.unflatten(0, (len(shown), levels))}
    return {"pictures": pictures}


def one_of_each(classes: Tensor, count: int) -> Tensor:
    """At most `count` indices, the first of each class before the second of any."""
    rank = torch.zeros(len(classes), dtype=torch.int64)
    for label in classes.unique():
        members = (classes == label).nonzero().flatten()
        rank[members] = torch.arange(len(members))
    return rank.argsort(stable=True)[:count]


def _kept_of_model(findings: Findings) -> dict[str, Tensor]:
    """Return the tensors from which the metrics of a further classifier can be computed.

    Its examples are kept, to be seen beside each other.
    """
    keys = {"predictions", "noisy_predictions", *MOVED} - {"decayed_inputs"}
    stored_keys = [key for key in findings.generation if key.rpartition(".")[2] in keys]
    return {
        "clean_predictions": findings.subject.clean_predictions,
        "generated_accuracy": findings.accuracy_predictions,
        **{f"reconstruction.{key}": findings.reconstruction[key] for key in stored_keys},
        **{f"generation.{key}": findings.generation[key] for key in stored_keys},
        **{f"conventional.{key}": value for key, value in findings.conventional.items()},
    }


def _caveats(findings: Findings, generators: FittedGenerator, metrics: Mapping[str, Json]) -> Iterator[Caveat]:
    entry, subject = findings.entry, findings.subject
    encoded = "lra" in metrics
    lra, clean = number({"lra": 1, **metrics}, "lra"), number(metrics, "clean_accuracy")
    if lra < clean - RECONSTRUCTION_GAP:
        yield Caveat(
            "poor_reconstruction",
            f"Accuracy on reconstructed images (LRA {lra:.1%}) is more than 5 points under clean accuracy ({clean:.1%}): the "
            f"metrics on reconstructions measure the generative model as much as the classifier.",
        )
    norm = number({"code_norm": 1, **metrics}, "code_norm")
    if abs(norm - 1) > CODE_NORM_GAP:
        yield Caveat(
            "codes_not_standard_normal",
            f"Codes of real images have a mean scaled norm of {norm:.2f}, draws of N(0, I) of 1.00: metrics of generated "
            f"images concern codes that real images seldom have, and scaled norms of the two kinds are not comparable.",
        )
    if encoded and uses_search(entry.encoding, generators):
        why = "was asked for" if generators.has_encoder else "is needed: the generative model has no encoder"
        yield Caveat("codes_searched", f"Codes of real images are found by gradient search, which {why}.")
    if not encoded:
        yield Caveat(
            "no_samples_encoded",
            "No sample was encoded (samples: {n: 0}): there are only metrics of generated images, and it is unknown how well the "
            "generative model covers real ones.",
        )
    lars, lags = (int(number({key: 0, **metrics}, key)) for key in ("lars_not_found", "lags_not_found"))
    if lars or lags:
        yield Caveat(
            "not_found",
            f"Within {entry.minimum.rho:g} no change of class was found for {lars} reconstructed and "
            f"{lags} generated images; the mean severities are over the others, so the true ones are larger.",
        )
    if doubted := sum(int(side["unconfirmed"].sum()) for side in (findings.reconstruction, findings.generation)):
        text = f"A second forward pass did not confirm {doubted} examples of the search; they count as not found."
        yield Caveat("unconfirmed", text)
    if depends_on_batch(subject.classifier, subject.dataset.inputs):
        yield Caveat(
            "depends_on_batch",
            "The classifier's scores for an image depend on the other images of its batch (batch statistics at inference): a "
            "batch size of one would give other metrics.",
        )


def depends_on_batch(classifier: Classifier, inputs: Tensor) -> bool:
    """Return whether scores of single images differ from those of the same images in one batch."""
    few = inputs[:BATCH_PROBE]
    together, alone = classifier.logits(few), classifier.logits(few, batch_size=1)
    return bool((together - alone).abs().max() > BATCH_TOLERANCE * together.abs().max().clamp(min=1))


def run(task: Task[LatentEntry]) -> AssessmentResult:
    """Run one entry for this run's classifier and for its `models`."""
    subject = task.subject
    data, work = task.all_samples.dataset, task.resolved.work
    others = load_models(task.where, task.entry, data, work.device, configured_server())
    block = generators_in(work.inputs["generators"])
    generators = load_generators(task.layout.generators, subject.classifier.device, data, block)
    quality = read_quality(task.layout.generators)
    return assess(task.name, task.entry, subject, generators, quality, others, task.all_samples)


def uses_search(encoding: Encoding, generators: FittedGenerator) -> bool:
    """Return whether codes are searched: where that is asked for, or where the generative model has no encoder."""
    return encoding.by == "search" or not generators.has_encoder


def encode(
    generators: FittedGenerator, inputs: Tensor, classes: Tensor, encoding: Encoding, generator: torch.Generator
) -> Tensor:
    """Codes (N, n_L) of inputs (N, ...) of `classes` (N,): by the encoder, or by `search_codes`."""
    if uses_search(encoding, generators):
        return search_codes(generators, inputs, classes, encoding, generator)
    with torch.no_grad():
        return generators.encode(inputs, classes).detach()


def search_codes(
    generators: FittedGenerator, inputs: Tensor, classes: Tensor, encoding: Encoding, generator: torch.Generator
) -> Tensor:
    """Return the codes (N, n_L) whose images are nearest in mean square: Adam from N(0, I), all images and restarts at once.

    Adam works element by element, so a code does not depend on those beside it. Best of the restarts by final error.
    """
    n, restarts = len(inputs), encoding.restarts
    codes = torch.randn(n * restarts, generators.latent_dim, generator=generator).to(inputs.device).requires_grad_()
    repeated, labels = inputs.repeat_interleave(restarts, 0), classes.repeat_interleave(restarts)
    optimiser = torch.optim.Adam([codes], lr=encoding.learning_rate)

    def errors() -> Tensor:
        return (generators.decode(codes, labels) - repeated).square().flatten(1).mean(1)

    for _ in range(encoding.steps):
        optimiser.zero_grad()
        (codes.grad,) = torch.autograd.grad(errors().sum(), codes)
        optimiser.step()
    with torch.no_grad():
        best = errors().view(n, restarts).argmin(1)
    return codes.detach().view(n, restarts, -1)[torch.arange(n, device=codes.device), best]


def load_models(
    where: str, entry: LatentEntry, dataset: Dataset, device: str, server: str | None
) -> dict[str, Classifier]:
    """Return the classifiers of `models`, by the text that names them.

    Raises UserError, naming the key, for one that is not there, does not fit the data or cannot be differentiated.
    """
    classifiers: dict[str, Classifier] = {}
    for index, directory in enumerate(entry.models):
        key, name = f"{where}.models[{index}]", OtherModel.of(directory).model
        if name in classifiers:
            raise UserError(f"{key}: '{name}' is named twice; each classifier once")
        classifiers[name] = named_classifier(key, directory, dataset, device, server)
        classifiers[name].require(LATENT_PGD, key)
    return classifiers


GEOMETRY: dict[str, Geometry] = {"scaled_l2": SCALED_L2, "linf": LINF}


def bounds_of(options: Conventional, norm: str) -> tuple[float, ...]:
    """Return the bounds of adversarial frequency under `norm`, in the units of the inputs."""
    return {"scaled_l2": options.scaled_l2, "linf": options.linf}[norm]


def conventional(
    options: Conventional, classifier: Classifier, inputs: Tensor, classes: Tensor, span: tuple[float, float], seed: int
) -> dict[str, Tensor]:
    """Distances (S,) to the nearest found change of class under each norm, inf for none; noise_predictions (S, D).

    Noise of `noise_sigma` of the range `span` is added and clipped to it, since models take no other inputs.
    """

    def generator(purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(seed, "conventional", purpose))

    centres, labels = inputs.to(classifier.device), classes.to(classifier.device)
    results = {}
    for norm, geometry in GEOMETRY.items():
        plan = plan_of(options, max(bounds_of(options, norm)) * options.reach)
        problem = Problem(lambda points, indices: classifier.module(points).float(), centres, labels, geometry, span)
        results[norm] = minimum_search(problem, plan, generator(norm)).distances.cpu()
    noise, sigma, answers = generator("noise"), options.noise_sigma * (span[1] - span[0]), []
    for _ in range(options.noise_draws):
        noisy = (inputs + sigma * torch.randn(inputs.shape, generator=noise)).clamp(*span)
        answers.append(classifier.predict(noisy, classes))
    return {**results, "noise_predictions": torch.stack(answers, 1)}
