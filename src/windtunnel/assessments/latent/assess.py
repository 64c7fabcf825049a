"""The pipeline of a latent assessment: encode, generate, search, measure; for one classifier or for several."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.latent.correlate import correlations, few_classifiers
from windtunnel.assessments.latent.examine import decode, examine, predict_codes
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
from windtunnel.assessments.latent.search import LINF, SCALED_L2, Geometry, Problem, SearchSettings, minimum_search
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
    """Results of one classifier on them; see `examine` and `conventional`."""

    reconstruction: dict[str, Tensor]
    generation: dict[str, Tensor]
    accuracy_predictions: Tensor
    conventional: dict[str, Tensor]


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

    everyone: all assessed samples; where `entry` encodes none, their labels say how often each class is generated, and their
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
        raise UserError(
            f"latent.{name}: there are no generative models; set generators.source: train, or bring a function"
        )
    generators = generators.to(subject.classifier.device)
    generators.require_length_matters(f"latent.{name}")
    # With no samples to encode, classes and clean accuracy are still those of the data.
    reference_samples = subject if len(subject.dataset) or all_samples is None else all_samples
    codes = _codes(name, entry, subject, reference_samples, generators)
    findings = _findings(name, "this run", entry, reference_samples, generators, codes)
    rows, extra = [_row("this run", entry, reference_samples, codes, findings)], {}
    for index, (label, classifier) in enumerate((others or {}).items(), 1):
        other = _as_subject(reference_samples, classifier)
        own_findings = _findings(name, label, entry, other, generators, codes)
        rows.append(_row(label, entry, other, codes, own_findings))
        extra[f"model_{index}"] = _kept_of_model(other, own_findings)
    metrics: dict[str, Json] = {
        **_metrics(entry, reference_samples, codes, findings),
        **(quality.model_dump() if quality else {}),
        **({"models": written(rows), "correlations": written(correlations(rows))} if others else {}),
    }
    return AssessmentResult(
        name=name,
        semantics=Semantics(LATENT_PGD, _region(entry)),
        data={**_data(entry, subject, reference_samples, generators, codes, findings), **extra},
        metrics=metrics,
        caveats=(*_caveats(entry, reference_samples, generators, findings, metrics), *few_classifiers(rows)),
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
            **entry.model_dump(mode="json", include={"bounded", "minimum", "encoding", "conventional", "noise_draws"}),
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
    identity: list[Json] = [entry.model_dump(mode="json"), data.digest(), classifier.digest, str(classifier.device)]
    identity += [subject.seed, generators.digest]
    checkpoints = []

    def search(side: str, latents: Tensor, classes: Tensor) -> dict[str, Tensor]:
        checkpoints.append(Checkpoint(f"{name}.{side}", subject.resolved, [label, *identity]))
        batches = batches_of(torch.arange(len(latents)), entry.batch_size, subject.seed, f"{name}.{side}")

        def work(batch: Batch) -> dict[str, Tensor]:
            indices = batch.indices
            findings = examine(entry, generators, classifier, latents[indices], classes[indices], batch.seed)
            if entry.conventional and side == "reconstruction":
                pixels = conventional(
                    entry.conventional, classifier, data.inputs[indices], classes[indices], data.value_range, batch.seed
                )
                findings |= {f"conventional.{key}": value for key, value in pixels.items()}
            return findings

        return run_batches(batches, work, name=f"{name}: {label}, {side}", checkpoint=checkpoints[-1])

    generation = search("generation", codes.generated, codes.generated_classes)
    reconstruction = (
        search("reconstruction", codes.latents, data.targets)
        if len(codes.latents)
        else {key: value[:0] for key, value in generation.items()}
    )
    device = classifier.device
    predictions = predict_codes(
        generators, classifier, codes.accuracy_latents.to(device), codes.accuracy_classes.to(device)
    )
    for checkpoint in checkpoints:
        checkpoint.clear()
    pixels = {k.partition(".")[2]: v for k, v in reconstruction.items() if k.startswith("conventional.")}
    own_metrics = {k: v for k, v in reconstruction.items() if not k.startswith("conventional.")}
    return Findings(own_metrics, generation, predictions, pixels)


def _as_subject(subject: Subject, classifier: Classifier) -> Subject:
    """Return the same samples under another classifier; its clean predictions are computed here, once."""
    logits = classifier.logits(subject.dataset.inputs)
    clean_predictions = classifier.criterion.predict(logits, subject.dataset.targets)
    return replace(subject, classifier=classifier, clean_logits=logits, clean_predictions=clean_predictions)


def _core_metrics(entry: LatentEntry, subject: Subject, codes: Codes, findings: Findings) -> dict[str, Json]:
    """Return the eight metrics and their conventional counterparts of one classifier."""
    rhos = entry.bounded.rho
    clean = binomial_rate(int(subject.clean_correct.sum()), len(subject.dataset))
    block: dict[str, Json] = {
        **clean.metrics("clean_accuracy"),
        **accuracy(findings.accuracy_predictions, codes.accuracy_classes).metrics("lga"),
    }
    for side, (_, data, classes) in _sides(subject, codes, findings).items():
        block |= {**side_metrics(side, data, classes, rhos[0]), **value_metrics(side, data, entry.decay_epsilon, rhos)}
    if entry.conventional and findings.conventional:
        bounds = {norm: bounds_of(entry.conventional, norm) for norm in GEOMETRY}
        block |= conventional_metrics(findings.conventional, subject.dataset.targets, bounds)
    return block


def _sides(
    subject: Subject, codes: Codes, findings: Findings
) -> dict[str, tuple[Tensor, Mapping[str, Tensor], Tensor]]:
    """(codes, what was found around them, their classes) of the generated images, and of the samples where any were encoded."""
    sides: dict[str, tuple[Tensor, Mapping[str, Tensor], Tensor]] = {}
    if len(codes.latents):
        sides["reconstruction"] = (codes.latents, findings.reconstruction, subject.dataset.targets)
    return {**sides, "generation": (codes.generated, findings.generation, codes.generated_classes)}


def _metrics(entry: LatentEntry, subject: Subject, codes: Codes, findings: Findings) -> dict[str, Json]:
    sides = _sides(subject, codes, findings)
    factor = shrink(entry.decay_epsilon[0])
    block: dict[str, Json] = {
        **_core_metrics(entry, subject, codes, findings),
        "n_samples": len(codes.latents),
        "n_generated": len(codes.generated),
        "n_codes": len(codes.accuracy_classes),
        "noise_levels": list(entry.noise_levels),
        **_values(entry),
        "distributions": {side: distributions(latents, data, factor) for side, (latents, data, _) in sides.items()},
        "per_class": per_class(
            subject.dataset.class_names,
            {side: (data, classes) for side, (_, data, classes) in sides.items()},
            (findings.accuracy_predictions, codes.accuracy_classes),
            entry.bounded.rho[0],
        ),
    }
    if len(codes.latents):
        error = scaled_norm(findings.reconstruction["inputs"] - subject.dataset.inputs)
        block |= {
            **mean_with_interval("code_norm", scaled_norm(codes.latents)),
            "reconstruction_error": float(error.mean()),
            "reconstruction_error_distribution": summary(error),
        }
    return block


def metrics_from(entry: LatentEntry, data: Tensors, subject: Subject) -> dict[str, Json]:
    """Return the metrics of the subject's classifier from robustness_data.pt alone, as `assess` made them."""
    generated, accuracy_tensors = (tensors_in(data, key) for key in ("generated", "generated_accuracy"))
    codes = Codes(
        tensor_in(data, "latents"),
        generated["latents"],
        generated["classes"],
        generated["latents"][:0],
        accuracy_tensors["classes"],
    )
    reconstruction = {
        key: tensor_in(data, _RENAMED.get(key, key)) for key in generated if key not in {"latents", "classes"}
    }
    if "reference_targets" in data:
        targets, predictions = (tensor_in(data, f"reference_{key}") for key in ("targets", "predictions"))
        subject = replace(
            subject, dataset=replace(subject.dataset, inputs=targets, targets=targets), clean_predictions=predictions
        )
    return _metrics(
        entry,
        subject,
        codes,
        Findings(reconstruction, generated, accuracy_tensors["predictions"], tensors_in(data, "conventional")),
    )


def _row(label: str, entry: LatentEntry, subject: Subject, codes: Codes, findings: Findings) -> ClassifierMetrics:
    core = {**_core_metrics(entry, subject, codes, findings), **_image_changes(entry, subject, codes, findings)}
    return ClassifierMetrics.of(label, {key: value for key, value in core.items() if not isinstance(value, list)})


def _image_changes(entry: LatentEntry, subject: Subject, codes: Codes, findings: Findings) -> dict[str, Json]:
    """Mean distance of the found examples in the image, per side: the paper's third finding is about robust classifiers."""
    block: dict[str, Json] = {}
    for index, epsilon in enumerate(entry.decay_epsilon):
        for side, (latents, data, _) in _sides(subject, codes, findings).items():
            epsilon_data = {key: data[f"{at_epsilon(epsilon) if index else ''}{key}"] for key in MOVED}
            moved = changes(latents, epsilon_data, shrink(epsilon))
            for norm in ("l2", "l1"):
                values = moved[f"image_change_{norm}"]
                block |= mean_with_interval(f"image_change_{norm}_{side}", values) if not index else {}
                if len(entry.decay_epsilon) > 1:
                    block |= mean_with_interval(f"image_change_{norm}_{side}_epsilon_{epsilon:g}", values)
    return block


def _data(
    entry: LatentEntry,
    subject: Subject,
    reference_samples: Subject,
    generators: FittedGenerator,
    codes: Codes,
    findings: Findings,
) -> Tensors:
    mine = findings.reconstruction
    broken = within(mine["distances"], entry.bounded.rho[0])
    likelihood = log_likelihood(mine["distances"], entry.decay_epsilon[0], generators.latent_dim)
    reference = {
        "reference_targets": reference_samples.dataset.targets,
        "reference_predictions": reference_samples.clean_predictions,
    }
    return {
        **base_data(subject, torch.where(broken, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))),
        **{_RENAMED.get(key, key): value for key, value in mine.items()},
        **_broken_within(entry, mine),
        "latents": codes.latents,
        "llar_log_likelihood": likelihood,
        "generated": {"classes": codes.generated_classes, "latents": codes.generated, **findings.generation},
        "generated_accuracy": {"classes": codes.accuracy_classes, "predictions": findings.accuracy_predictions},
        "conventional": findings.conventional,
        **({} if len(subject.dataset) else reference),
        **_pictures(subject, generators, codes, findings),
    }


def _broken_within(entry: LatentEntry, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whether each sample is broken within each of several bounds, (N, R), at each decay epsilon; nothing for one bound."""
    rhos = entry.bounded.rho
    if len(rhos) == 1:
        return {}
    prefixes = ["", *(at_epsilon(epsilon) for epsilon in entry.decay_epsilon[1:])]
    return {
        f"{prefix}broken_within": torch.stack([within(mine[f"{prefix}distances"], rho) for rho in rhos], 1)
        for prefix in prefixes
    }


def _pictures(subject: Subject, generators: FittedGenerator, codes: Codes, findings: Findings) -> Tensors:
    """Return the first noisy image (P, E, ...) at each level of a few samples and generated images; nothing where inputs are no images."""
    if not subject.dataset.is_image:
        return {}
    pictures: dict[str, Tensor] = {}
    for side, (_, data, classes) in _sides(subject, codes, findings).items():
        shown = one_of_each(classes, PICTURED)
        levels = data["noisy_latents"].shape[1]
        noisy = data["noisy_latents"][shown].flatten(0, 1).to(subject.classifier.device)
        images = decode(generators, noisy, classes[shown].repeat_interleave(levels).to(noisy.device))
        pictures |= {f"{side}_rows": shown, f"{side}_noisy": images.unflatten(0, (len(shown), levels))}
    return {"pictures": pictures}


def one_of_each(classes: Tensor, count: int) -> Tensor:
    """At most `count` indices, the first of each class before the second of any."""
    rank = torch.zeros(len(classes), dtype=torch.int64)
    for label in classes.unique():
        members = (classes == label).nonzero().flatten()
        rank[members] = torch.arange(len(members))
    return rank.argsort(stable=True)[:count]


def _kept_of_model(subject: Subject, findings: Findings) -> dict[str, Tensor]:
    """Return the tensors from which the metrics of a further classifier can be computed.

    Its examples are kept, to be seen beside each other.
    """
    keys = {"predictions", "noisy_predictions", *MOVED} - {"decayed_inputs"}
    stored_keys = [key for key in findings.generation if key.rpartition(".")[2] in keys]
    return {
        "clean_predictions": subject.clean_predictions,
        "generated_accuracy": findings.accuracy_predictions,
        **{f"reconstruction.{key}": findings.reconstruction[key] for key in stored_keys},
        **{f"generation.{key}": findings.generation[key] for key in stored_keys},
        **{f"conventional.{key}": value for key, value in findings.conventional.items()},
    }


def _caveats(
    entry: LatentEntry, subject: Subject, generators: FittedGenerator, findings: Findings, metrics: Mapping[str, Json]
) -> list[Caveat]:
    notes: list[Caveat] = []
    encoded = "lra" in metrics
    lra, clean = number({"lra": 1, **metrics}, "lra"), number(metrics, "clean_accuracy")
    if lra < clean - RECONSTRUCTION_GAP:
        text = (
            f"Accuracy on reconstructed images (LRA {lra:.1%}) is more than 5 points under clean accuracy ({clean:.1%}): the "
            f"metrics on reconstructions measure the generative model as much as the classifier."
        )
        notes.append(Caveat("poor_reconstruction", text))
    norm = number({"code_norm": 1, **metrics}, "code_norm")
    if abs(norm - 1) > CODE_NORM_GAP:
        text = (
            f"Codes of real images have a mean scaled norm of {norm:.2f}, draws of N(0, I) of 1.00: what is said of generated images "
            f"is of codes that real images seldom have, and scaled norms on the two sides do not compare."
        )
        notes.append(Caveat("codes_not_standard_normal", text))
    if encoded and uses_search(entry.encoding, generators):
        why = "was asked for" if generators.has_encoder else "is needed: the generative model has no encoder"
        notes.append(Caveat("codes_searched", f"Codes of real images are found by gradient search, which {why}."))
    if not encoded:
        text = (
            "No sample was encoded (samples: {n: 0}): there are metrics of generated images alone, and how well the generative "
            "model covers real ones was not measured."
        )
        notes.append(Caveat("no_samples_encoded", text))
    lars, lags = (int(number({key: 0, **metrics}, key)) for key in ("lars_not_found", "lags_not_found"))
    if lars or lags:
        text = (
            f"Within {entry.minimum.rho:g} no change of class was found for {lars} reconstructed and "
            f"{lags} generated images; the mean severities are over the others, so the true ones are larger."
        )
        notes.append(Caveat("not_found", text))
    doubted = sum(int(side["unconfirmed"].sum()) for side in (findings.reconstruction, findings.generation))
    if doubted:
        text = f"A second forward pass did not confirm {doubted} examples of the search; they count as not found."
        notes.append(Caveat("unconfirmed", text))
    if depends_on_batch(subject.classifier, subject.dataset.inputs):
        text = (
            "The classifier's scores for an image depend on what else is in the batch (batch statistics at inference): its "
            "predictions are not a function of the image, and one at a time would give other numbers."
        )
        notes.append(Caveat("depends_on_batch", text))
    return notes


def depends_on_batch(classifier: Classifier, inputs: Tensor) -> bool:
    """Return whether scores of single images differ from those of the same images in one batch."""
    few = inputs[:BATCH_PROBE]
    together, alone = classifier.logits(few), classifier.logits(few, batch_size=1)
    return bool((together - alone).abs().max() > BATCH_TOLERANCE * together.abs().max().clamp(min=1))


def run(task: Task[LatentEntry]) -> AssessmentResult:
    """Run one entry for this run's classifier and for its `models`."""
    subject = task.subject
    others = load_models(
        task.where, task.entry, task.all_samples.dataset, task.resolved.work.device, configured_server()
    )
    block = generators_in(task.resolved.work.inputs["generators"])
    generators = load_generators(task.layout.generators, subject.classifier.device, task.all_samples.dataset, block)
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
    device = classifier.device
    centres, labels = inputs.to(device), classes.to(device)
    results = {}
    for norm, geometry in GEOMETRY.items():
        plan = SearchSettings(
            max(bounds_of(options, norm)) * options.reach, options.restarts, options.steps, options.step_size
        )
        problem = Problem(lambda points, indices: classifier.module(points).float(), centres, labels, geometry, span)
        results[norm] = minimum_search(problem, plan, _generator(seed, norm)).distances.cpu()
    generator = _generator(seed, "noise")
    sigma = options.noise_sigma * (span[1] - span[0])
    draws = [
        classifier.predict((inputs + sigma * torch.randn(inputs.shape, generator=generator)).clamp(*span), classes)
        for _ in range(options.noise_draws)
    ]
    return {**results, "noise_predictions": torch.stack(draws, 1)}


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "conventional", purpose))
