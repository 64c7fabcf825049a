"""Check an attack entry before anything is computed."""

import inspect
from collections.abc import Sequence

from windtunnel.assessments.attacks.calls import invoker_of
from windtunnel.assessments.attacks.gradients import adapted, surrogate_of
from windtunnel.assessments.attacks.plan import plan_of
from windtunnel.assessments.attacks.profiles import DLR_CLASSES, PROFILES
from windtunnel.assessments.attacks.rows import FUNCTION_ARGUMENTS, AttackRow, Invoker, Targeting
from windtunnel.assessments.attacks.settings import check_epsilon
from windtunnel.assessments.attacks.table import ROWS, row_of
from windtunnel.assessments.attacks.targets import check_chosen_targets
from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Algorithm, Capability, Norm, PerturbationBudget, ThreatModel
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.references import resolve
from windtunnel.core.transformations import KINDS, transformation_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import MAX_COUNT, Budget, Entry
from windtunnel.registry.plugins import library_of

MOST_STARTS = 1_000  # around each of which a grid is refined
MOST_POINTS = 100_000  # of a grid of transformations: a loss is held for each of them and each sample
_MEASURED_INPUTS = 3 * 32 * 32  # of the images for which `AttackRow.seconds` was measured


def check_data(where: str, what: str, dataset: Dataset) -> None:
    """Raise IncompatibleError, in one line that begins with `what` the attack does, for data that are no images of several classes."""
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: {what} (N, C, H, W), the data is tabular; use sweeps with FGSM")
    if dataset.num_classes < 2:
        raise IncompatibleError(f"{where}: the data has one class; there is no wrong one to reach")


def preflight(where: str, entry: AttackEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> list[str]:
    """Return a line for an attack that takes long.

    Raises UserError or IncompatibleError, in one line, for an attack that cannot run or would mean nothing.
    """
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "attacks")
    row = row_of(algorithm)
    for library in _libraries(row):
        library_of(library, "attacks").require(where)
    classifier.require(algorithm, where)
    check_data(where, f"{entry.library} attacks images", dataset)
    _check_budget(where, entry, row, budget)
    if row.fits and not dataset.chosen:
        raise UserError(
            f"{where}.samples: {algorithm.name} is fitted on samples outside of its draw, which has all {len(dataset)}; set n and "
            f"selection: {where}.samples: {{n: {max(1, len(dataset) // 2)}, selection: random}}"
        )
    effective = entry.budget.over(budget)
    check_image(where, effective.norm, effective.epsilon or 0.0, dataset.inputs.shape[1:])
    if row.invoker is Invoker.FUNCTION:
        _check_function(where, entry)
    classes = classifier.criterion.competing_classes(dataset.num_classes)
    has_gradients = Capability.AUTOGRAD in classifier.capabilities
    plan_of(where, entry, row, entry.budget.over(budget), classes, has_gradients=has_gradients)
    if entry.invoker and row.is_ensemble:
        raise UserError(
            f"{where}.invoker: the profile {row.algorithm.name} runs several attacks; name one of them instead"
        )
    if row.invoker is Invoker.ADAPTIVE:
        _check_adaptive(where, entry)
    invoker_of(where, entry.invoker)
    _check_gradients(where, entry, algorithm, classifier)
    _check_data(where, entry, row, dataset, classes)
    _check_objective(where, entry, row, dataset)
    _check_criterion(where, entry, row, classifier)
    samples = min(entry.samples.n or len(dataset), len(dataset))
    minutes = seconds_a_sample(entry, dataset) * samples / 60
    if minutes < 1:
        return []
    time = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    return [
        f"{where}: {row.algorithm.name} is slow: roughly {time} on one processor for {samples} samples of "
        f"{'x'.join(map(str, dataset.inputs.shape[1:]))}; {where}.samples: {{n: ...}} attacks fewer, `check --estimate` measures it"
    ]


def seconds_a_sample(entry: Entry, dataset: Dataset) -> float:
    """Return roughly how long an attack takes for a sample of this size on one processor; 0 for an attack that is not slow."""
    row = row_of(find_algorithm(entry.library, entry.algorithm, "attacks", "attacks"))
    seconds = row.seconds * (dataset.inputs[0].numel() / _MEASURED_INPUTS) ** row.growth
    return seconds * (entry.restarts if isinstance(entry, AttackEntry) else 1)


def _check_function(where: str, entry: AttackEntry) -> None:
    """Raise UserError unless the user's own attack exists and accepts its call's arguments."""
    function = resolve(entry.algorithm, f"{where}.algorithm")
    try:
        inspect.signature(function).bind(*FUNCTION_ARGUMENTS, **entry.params)
    except (TypeError, ValueError) as error:  # a function of C has no signature
        raise UserError(
            f"{where}.algorithm: {entry.algorithm} is called with ({', '.join(FUNCTION_ARGUMENTS)}) and params: {error}"
        ) from error


def _check_adaptive(where: str, entry: AttackEntry) -> None:
    """Raise UserError unless it is untargeted, and leaves the attacks of standard out only where others ran before."""
    if entry.target_classes is not None:
        raise UserError(f"{where}.target_classes: {entry.algorithm} breaks by any class; remove it")
    if entry.params.get("standard") is False and not (entry.on and entry.on.survivors_of):
        raise UserError(
            f"{where}.params.standard: false leaves the attacks of standard out; name those that ran in their place: "
            f"{where}.on: {{survivors_of: [...]}}"
        )


def _check_gradients(where: str, entry: AttackEntry, algorithm: Algorithm, classifier: Classifier) -> None:
    """Refuse a stand-in or a mean over draws for an attack without gradients, or a model without them."""
    for key, is_set in (("adapt", entry.adapt), ("eot", entry.eot > 1)):
        if is_set and algorithm.threat_model is not ThreatModel.WHITE_BOX:
            raise UserError(
                f"{where}.{key}: {entry.algorithm} asks for no gradient ({algorithm.threat_model}); remove it"
            )
    adapted(where, classifier.module, surrogate_of(where, entry.adapt))


def _libraries(row: AttackRow) -> list[str]:
    """Return the library of an attack, or those of the members of an ensemble."""
    if not row.is_ensemble:
        return [row.algorithm.library]
    members = (member for of_norm in PROFILES[row.algorithm.name].values() for member in of_norm)
    return sorted({member.library for member in members})


def _check_budget(where: str, entry: AttackEntry, row: AttackRow, budget: Budget) -> None:
    effective, name = entry.budget.over(budget), row.algorithm.name
    check_transformation(where, f"{entry.library} {name}", effective.norm, transforms=row.transforms)
    if row.transforms:
        _check_search(where, entry, effective)
        return
    if row.invoker is not Invoker.UNBOUNDED and effective.norm not in row.allowed_norms:
        works = " or ".join(row.allowed_norms)
        raise IncompatibleError(
            f"{where}.budget.norm: {entry.library} {name} works under {works}, the budget is {effective.norm}; set "
            f"{where}.budget: {{norm: {row.allowed_norms[0]}, epsilon: ...}}, or choose another: windtunnel algorithms "
            f"--norm {effective.norm}"
        )
    if lack := entry.budget.lack(where, budget):
        raise UserError(lack)
    check_epsilon(where, effective)


def check_transformation(where: str, what: str, norm: Norm, *, transforms: bool) -> None:
    """Raise IncompatibleError, in one line, where `what` works in balls and the budget is a transformation, or the other way round."""
    transformation = transformation_of(norm)
    if transformation and not transforms:
        raise IncompatibleError(
            f"{where}.budget: {what} works in balls of a norm, the budget is {transformation.words()}; use library: "
            f"transformations, or set {where}.budget: {{norm: Linf, epsilon: ...}}"
        )
    if transforms and not transformation:
        raise IncompatibleError(
            f"{where}.budget: {what} works on transformations, the budget is a ball of {norm}; set {where}.budget: "
            f"{{rotation: 10}}, one of budgets by its name, or up to four of {', '.join(KINDS)}"
        )


def _check_search(where: str, entry: AttackEntry, budget: PerturbationBudget) -> None:
    """Raise UserError or IncompatibleError for a region, or a grid, that an algorithm of `transformations` cannot search."""
    transformation, name = transformation_of(budget.norm), entry.algorithm
    assert transformation is not None
    assert budget.epsilon is not None
    if name == "grid" and not transformation.is_square and len(transformation.names) > 2:
        raise IncompatibleError(
            f"{where}: grid searches one or two parameters, {transformation.words()} has "
            f"{len(transformation.names)}; use algorithm: gradient, evolution or random"
        )
    if name == "grid" and transformation.is_patch:
        raise IncompatibleError(
            f"{where}: the content of a patch has no grid; use algorithm: gradient, evolution or random"
        )
    for key, count in entry.params.items():
        least, most = int(key != "refine"), {"points": MOST_POINTS, "starts": MOST_STARTS}.get(key, MAX_COUNT)
        if isinstance(count, int | float) and not least <= count <= most:
            raise UserError(f"{where}.params.{key}: {count}; from {least} to {most}")
    if name == "universal" and not transformation.is_patch:
        raise IncompatibleError(
            f"{where}: universal fits a patch, the budget is {transformation.words()}; use algorithm: gradient"
        )
    if name == "universal" and entry.restarts > 1:
        raise UserError(
            f"{where}.restarts: universal fits one patch; its params.starts are the places that it starts from"
        )
    if name in ("gradient", "evolution") and transformation.kinds[0].name == "occlusion":
        raise IncompatibleError(f"{where}: an occlusion has no {name}; algorithm: grid tries every place")
    if name == "evolution":
        population, queries = (
            entry.params.get(key, default) for key, default in (("population", 10), ("queries", 200))
        )
        if isinstance(population, int) and isinstance(queries, int) and not 3 <= population <= queries:
            raise UserError(
                f"{where}.params.population: {population} points; 3 at least, and at most queries ({queries})"
            )


def check_image(where: str, norm: Norm, epsilon: float, shape: Sequence[int]) -> None:
    """Raise IncompatibleError for a region that does not fit images of `shape` (C, H, W)."""
    transformation = transformation_of(norm)
    if transformation is None:
        return
    channels, height, width = shape
    if channels != 3 and (coloured := {kind.name for kind in transformation.kinds} & {"hue", "saturation"}):
        raise IncompatibleError(f"{where}: {min(coloured)} is of images with 3 channels, the data has {channels}")
    if transformation.is_square and not 1 <= transformation.side(epsilon) <= min(height, width):
        raise IncompatibleError(
            f"{where}: a square of {transformation.side(epsilon)} pixels does not fit into {height}x{width} images"
        )


def _check_criterion(where: str, entry: AttackEntry, row: AttackRow, classifier: Classifier) -> None:
    """Refuse targeted attacks under a top-k head: there an attack pushes the label out of the k largest."""
    criterion, name = classifier.criterion, row.algorithm.name
    if entry.target_classes is not None:
        criterion.require_top_1(f"{where}.target_classes", "no class can be aimed at")
    if row.invoker in (Invoker.FUNCTION, Invoker.SURROGATES, Invoker.POOL, Invoker.STARTING_POINTS, Invoker.NEXT_CLASS):
        criterion.require_top_1(where, f"{name} draws on other samples or aims at a class, which is not defined")


def _check_data(where: str, entry: AttackEntry, row: AttackRow, dataset: Dataset, classes: int) -> None:
    channels, name = dataset.inputs.shape[1], row.algorithm.name
    if row.three_channels and channels not in (1, 3):
        raise IncompatibleError(
            f"{where}: the kernels of {name} are built for 3 channels (1 is adapted), the data has {channels}; "
            f"use MIFGSM"
        )
    needed = max(row.min_classes, DLR_CLASSES if entry.params.get("loss") == "dlr" else 2)
    if classes < needed:
        raise IncompatibleError(
            f"{where}: the loss of {name} needs {needed} classes, the data has {classes}; use APGD with params.loss: ce, "
            f"or the profile standard"
        )


def _check_objective(where: str, entry: AttackEntry, row: AttackRow, dataset: Dataset) -> None:
    name = row.algorithm.name
    if entry.target_classes is None:
        if row.targeting is Targeting.REQUIRED:
            raise UserError(
                f"{where}.target_classes: {name} can only aim at a class; set one, a list, least_likely, random or next"
            )
        return
    if row.targeting is Targeting.NO:
        fitting = sorted(
            r.algorithm.name
            for r in ROWS.values()
            if r.algorithm.library == entry.library
            and r.targeting is not Targeting.NO
            and r.algorithm.norm is row.algorithm.norm
        )
        use = f"; {', '.join(fitting[:4])} can" if fitting else "; remove it"
        raise IncompatibleError(f"{where}.target_classes: {entry.library} {name} cannot aim at a class{use}")
    if entry.on is not None and entry.on.survivors_of:
        raise UserError(f"{where}.on: survivors of untargeted attacks mean nothing to a targeted one; remove one")
    check_chosen_targets(where, entry.target_classes, entry.samples, dataset)
