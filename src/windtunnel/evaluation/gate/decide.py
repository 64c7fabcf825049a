"""The gate: does a run meet the conditions of `gate`, on its own and compared with the champion?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.core.contracts import Json, Norm
from windtunnel.core.errors import nearest
from windtunnel.core.transformations import transformation_of
from windtunnel.evaluation.gate.non_inferiority import Method, Paired, mean_interval, paired_interval, samples_needed
from windtunnel.params.results import Gate
from windtunnel.records.basis import Basis
from windtunnel.records.gate import (
    HELD,
    LOST,
    Condition,
    ConditionStatus,
    Decision,
    GateResult,
    OutcomeRecord,
    Outcomes,
    Shares,
)
from windtunnel.records.sandwich import Layer

# The attack that is proposed where none ran, by norm: its name, and its line.
_ATTACKS = {
    Norm.LINF: ("pgd", "library: torchattacks, algorithm: PGD"),
    Norm.L2: ("pgd", "library: torchattacks, algorithm: PGDL2"),
    Norm.L1: ("sparse", "library: foolbox, algorithm: SparseL1DescentAttack"),
    Norm.L0: ("fmn", "library: foolbox, algorithm: L0FMNAttack"),
}


def flatten(metrics: Mapping[str, Json], prefix: str = "") -> dict[str, float]:
    """Nested metrics as `group/name`: the names under which the gate, MLflow and `compare` know them."""
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}{key}"] = float(value)
    return flat


def decide(
    gate: Gate,
    metrics: Mapping[str, Json],
    challenger: OutcomeRecord,
    champion: OutcomeRecord | None = None,
    hard_failures: tuple[str, ...] = (),
    layers: Sequence[Layer] = (),
) -> GateResult:
    """Judge `challenger`. A hard failure comes first: numbers that are not sound are not compared with anything.

    Without a champion the conditions on the regression do not apply: the first model has nothing to be compared with. A gate
    without any condition passes, and its result has none. layers: the sandwich at every budget, the global one first; the
    draws of each say what its rates are an estimate of; see `with_named`. A condition on a rate without an estimate is refused,
    which makes the run unsound.
    """
    conditions = []
    if gate.no_hard_failures and (hard_failures or gate.is_set):
        why, failures = "the numbers are not valid" if hard_failures else "", float(len(hard_failures))
        conditions.append(Condition("hard failures", failures, 0.0, None, not hard_failures, "at most", why))
    flat = flatten(metrics)
    floors = [_floor(name, threshold, flat, challenger, layers) for name, threshold in gate.minimum.items()]
    if gate.no_hard_failures and hard_failures:
        samples = _enough_samples(gate, challenger, None)
        return GateResult(Decision.UNSOUND, (*samples, *conditions, *floors), hard_failures)
    conditions = [*_enough_samples(gate, challenger, champion), *conditions, *floors]
    for name, margin in gate.maximum_regression.items():
        conditions.append(_against_champion(gate, name, margin, challenger, champion, layers))
    decision = Decision.PASSED if all(c.holds for c in conditions) else Decision.FAILED
    if any(c.status is ConditionStatus.REFUSED for c in conditions):
        decision = Decision.UNSOUND
    return GateResult(decision, tuple(conditions), hard_failures, champion.origin if champion else None)


def regression_mismatch(gate: Gate, challenger: OutcomeRecord, champion: OutcomeRecord) -> list[str]:
    """Return the metrics of `maximum_regression` on which the two cannot be paired: another protocol or other samples."""
    return [name for name in gate.maximum_regression if _mismatch(name, challenger, champion)]


def _enough_samples(gate: Gate, challenger: OutcomeRecord, champion: OutcomeRecord | None) -> Iterator[Condition]:
    """Yield the condition on the number of samples: the smallest n of the metrics that the gate names."""
    if not gate.is_set:
        return
    sizes = {name: _size(name, challenger) for name in (*gate.minimum, *gate.maximum_regression)}
    for name in gate.maximum_regression:
        if champion and not _mismatch(name, challenger, champion):
            sizes[name] = len(_paired(name, challenger, champion))
    name, n = min(sizes.items(), key=lambda item: item[1], default=("", len(challenger.samples)))
    enough = n >= gate.minimum_samples
    why = "" if enough else f"{f'{name} is of {n}' if name else n} samples, which are too few"
    yield Condition("samples", float(n), float(gate.minimum_samples), None, enough, reason=why)


def _rows(name: str, record: OutcomeRecord) -> list[Outcomes | Shares]:
    """Return the outcomes under a metric, else those under the other metrics of its group, else of its assessment."""
    if name in record.outcomes:
        return [record.outcomes[name]]
    group = name.rpartition("/")[0]
    return [row for key, row in record.outcomes.items() if key.rpartition("/")[0] == group]


def _size(name: str, record: OutcomeRecord) -> int:
    """Return the n of a metric: the samples assessed under it, else under another metric of its group, else all."""
    return min((sum(row.assessed) for row in _rows(name, record)), default=len(record.samples))


def _end_of_sandwich(name: str) -> tuple[str, str | None]:
    """Return which end of the sandwich a metric is of (else an empty text), and the name of its budget (None: the global one)."""
    group, _, metric = name.partition("/")
    budget, _, rate = metric.rpartition("/")
    if group == "slices":
        group, budget = rate.partition("_accuracy")[0], ""
    return (group if group in {"worst_case", "certified"} else ""), budget or None


def _layer_of(name: str, layers: Sequence[Layer]) -> Layer | None:
    """Return the sandwich that a metric is of; None where it is of none, or nothing ran at its budget."""
    end, budget = _end_of_sandwich(name)
    if not end or budget is None:
        return layers[0] if end and layers else None
    return next((layer for layer in layers if layer.name == budget), None)


def _basis(name: str, record: OutcomeRecord, layers: Sequence[Layer], n: int | None = None) -> str:
    """Return the region and the samples that a metric is of; n: of a comparison, in place of its own. Empty where not known."""
    rows = _rows(name, record)
    if not rows:
        return ""
    balls = {(row.norm, row.epsilon) if isinstance(row, Outcomes) else (None, None) for row in rows}
    norm, epsilon = balls.pop() if len(balls) == 1 else (None, None)
    size, total, layer = _size(name, record), len(record.samples), _layer_of(name, layers)
    only_first = layer is not None and layer.only_first and size < total
    return str(Basis(norm, epsilon, size if n is None else n, total, only_first))


def _no_estimate(name: str, layers: Sequence[Layer]) -> str:
    """Say why a rate of the sandwich has no estimate at its budget, and which line gives one; empty if it has one."""
    (end, budget), layer = _end_of_sandwich(name), _layer_of(name, layers)
    if not end or not layers or name.startswith("certified/accuracy_all"):
        return ""
    if end == "worst_case" and (layer is None or not layer.n_attacked):
        where = layer.budget if layer else f"the budget '{budget}'"
        line = f" Add attacks: {_attack_at(layer)}" if layer else ""
        return f"no attack ran at {where}, so there is no worst case.{line}"
    if layer and layer.only_first:
        line = "; ".join(f"{draw.key}.samples.selection: random" for draw in layer.draws)
        other = ", or use certified/accuracy_all" if name == "certified/accuracy" else ""
        return f"it covers only the first {layer.n_attacked} of {layer.n} samples, which is no unbiased estimate. Add {line}{other}"
    return ""


def with_named(layers: Sequence[Layer], budgets: Json) -> list[Layer]:
    """Add a layer without samples for each named budget of the gate (`budgets` of its resolved entry) at which nothing ran."""
    assert isinstance(budgets, list)
    counts = {"n": 0, "n_attacked": 0, "n_examined": 0}
    named = [Layer.model_validate({**counts, **budget}) for budget in budgets if isinstance(budget, dict)]
    covered = {layer.name for layer in layers}
    return [*layers, *(layer for layer in named if layer.name not in covered)]


def _attack_at(layer: Layer) -> str:
    """Return an entry of params.yaml that attacks at the budget of `layer`."""
    ranges: dict[str, object] = {"norm": layer.norm, "epsilon": layer.epsilon}
    name, attack = _ATTACKS.get(layer.norm, ("turn", "library: transformations, algorithm: gradient"))
    if transformation := transformation_of(layer.norm):
        ranges = dict(transformation.block)
    text = ", ".join(f"{key}: {value}" for key, value in ranges.items())
    return f"{{{name}: {{{attack}, budget: {{{text}}}}}}}"


def _floor(
    name: str, threshold: float, flat: Mapping[str, float], record: OutcomeRecord, layers: Sequence[Layer]
) -> Condition:
    value, low, high = (flat.get(f"{name}{end}") for end in ("", "_ci_low", "_ci_high"))
    interval = (low, high) if low is not None and high is not None else None
    basis = _basis(name, record, layers)
    if why := _no_estimate(name, layers):
        status = ConditionStatus.REFUSED
        return Condition(name, value, threshold, interval, False, reason=why, status=status, basis=basis)
    if value is None:
        near = nearest(name, flat)
        why = "this run has no such metric" + (f"; did you mean {near}?" if near else "")
        return Condition(name, None, threshold, None, False, reason=why)
    holds = value >= threshold
    why = "" if holds else f"{threshold - value:.4g} below the floor"
    return Condition(name, value, threshold, interval, holds, reason=why, basis=basis)


def _against_champion(
    gate: Gate,
    name: str,
    margin: float,
    challenger: OutcomeRecord,
    champion: OutcomeRecord | None,
    layers: Sequence[Layer],
) -> Condition:
    title, alpha = f"{name} vs champion", gate.non_inferiority.alpha
    bound = "lower end above"
    if why := _no_estimate(name, layers):
        return Condition(title, None, -margin, None, False, bound, why, ConditionStatus.REFUSED)
    if champion is None:
        why = "no champion to compare with"
        return Condition(title, None, -margin, None, True, bound, why, ConditionStatus.NOT_APPLICABLE)
    if why := _mismatch(name, challenger, champion):
        return Condition(title, None, -margin, None, False, bound, why)
    comparison = compared(champion.outcomes[name], challenger.outcomes[name], alpha, gate.non_inferiority.method)
    low, _ = comparison.interval
    holds, why = low > -margin, comparison.statement
    if not holds:
        why += f": a loss of {-low:.3g} cannot be ruled out, {margin:.3g} is allowed"
        if comparison.n < (needed := samples_needed(margin, alpha)):
            why += f"; even equal outcomes need {needed} samples to show that"
    basis, difference = _basis(name, challenger, layers, comparison.n), comparison.difference
    return Condition(title, difference, -margin, comparison.interval, holds, bound, why, basis=basis)


def _mismatch(name: str, challenger: OutcomeRecord, champion: OutcomeRecord) -> str:
    """Return why the two runs must not be compared on a metric; empty if they may be."""
    mine, theirs = challenger.outcomes.get(name), champion.outcomes.get(name)
    if mine is None:
        return "this run has no outcomes under this metric"
    if theirs is None:
        return "the champion was never assessed on it: windtunnel champion --reassess"
    if mine.protocol != theirs.protocol or challenger.samples != champion.samples:
        return (
            "the champion was assessed under another protocol (samples, budget or settings), which is no comparison: "
            "windtunnel champion --reassess"
        )
    return "" if _paired(name, challenger, champion) else "no sample was assessed under both"


def _paired(name: str, challenger: OutcomeRecord, champion: OutcomeRecord) -> list[str]:
    """Return the samples that both models were assessed on under a metric."""
    rows = zip(challenger.samples, challenger.outcomes[name].assessed, champion.outcomes[name].assessed, strict=True)
    return [sample for sample, first, second in rows if first and second]


@dataclass(frozen=True, slots=True)
class Compared:
    """The second model against the first on `n` samples.

    difference: of the metric, second minus first. interval: its lower end is a one-sided bound at level alpha. statement: in words.
    """

    n: int
    difference: float
    interval: tuple[float, float]
    statement: str


def compared(first: Outcomes | Shares, second: Outcomes | Shares, alpha: float, method: Method) -> Compared:
    """Compare two rows of one protocol, on the samples that both were assessed on.

    `method` is of yes-or-no outcomes; a mean over images has the interval of `mean_interval`, samples being what is drawn.
    Raises ValueError for no common sample.
    """
    if isinstance(first, Shares) and isinstance(second, Shares):
        return _shares(first, second, alpha)
    assert isinstance(first, Outcomes)
    assert isinstance(second, Outcomes)
    pairs = [*zip(first.held, second.held, strict=True)]
    cells = ((HELD, HELD), (LOST, HELD), (HELD, LOST), (LOST, LOST))
    table = Paired(*(pairs.count(cell) for cell in cells))
    description = f"{table.gained} gained, {table.lost} lost of {table.n}"
    return Compared(table.n, table.difference, paired_interval(table, alpha, method), description)


def _shares(first: Shares, second: Shares, alpha: float) -> Compared:
    pairs = zip(first.right, second.right, strict=True)
    gains = [two - before for before, two in pairs if before is not None and two is not None]
    n, better, worse = len(gains), sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    differences = [gain / first.images for gain in gains]
    description = f"mean over {first.images} images of each sample: better on {better}, worse on {worse} of {n}"
    return Compared(n, sum(gains) / first.images / n, mean_interval(differences, alpha), description)
