"""`windtunnel gate --sequential`: assess samples in random order until the gate is decided."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.boundary.params import load_params
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed
from windtunnel.evaluation.gate.decide import decide
from windtunnel.evaluation.gate.sequential import SequentialGate
from windtunnel.evaluation.summary.outcomes import record_outcomes
from windtunnel.operations.api.pipeline import assess_subject
from windtunnel.params.entry import Entry
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.gate import Decision, OutcomeRecord, Outcomes, Shares, read_record
from windtunnel.records.layout import CHAMPION
from windtunnel.registry.plugins import families


def run_sequential_gate(batch: int) -> Iterator[tuple[SequentialGate, Decision | None, bool]]:
    """Assess the samples of the last run in random order, `batch` at a time.

    Every entry is run on all samples of a batch, those of families with generative models excepted. The order depends on
    the seed alone. No sanity check runs.

    Yields:
        (the gate with its sequences so far, the decision or None, True if it was decided by the rule for all samples).

    Raises:
        UserError: no data or model yet, no condition, or one that is no mean of per-sample outcomes.
    """
    params = load_params()
    champion = read_record(CHAMPION) if CHAMPION.is_file() and params.gate.maximum_regression else None
    gate = SequentialGate(params.gate, champion)
    _require_whole_draws(params, champion)
    subject = current_subject(params.device, params.seed, params.model)
    generator = torch.Generator().manual_seed(derive_seed(params.seed, "gate --sequential", 0))
    order = torch.randperm(len(subject.dataset), generator=generator)
    digest, records = subject.dataset.digest(), list[OutcomeRecord]()
    for indices in order.split(batch):
        result = assess_subject(_on_all_samples(params), subject.subset(indices.sort().values), None, checked=False)
        done = [result[name] for _, name, _ in entries(result.params or params)]
        valid = [artifacts for artifacts in done if artifacts.metadata.failure is None]
        records.append(record_outcomes(params, result["summary"], result["clean"], valid, digest))
        decision = gate.add(records[-1])
        by_rule = decision is None and sum(len(record.samples) for record in records) == len(order)
        if by_rule:
            record = joined(records, champion.samples if champion else ())
            metrics = {c.name: c.value for c in gate.conditions if c.span[0] == 0}
            decision = decide(params.gate, metrics, record, champion).decision
        yield gate, decision, by_rule
        if decision is not None:
            return


def _on_all_samples(params: Params) -> Params:
    """Return the params with every entry on all samples, without those that need generative models."""
    changed: dict[str, dict[str, Entry]] = {family: {} for family in families()}
    for family, name, entry in entries(params):
        if not families()[family].generators:
            samples = entry.samples.model_copy(update={"n": None})
            changed[family][name] = entry.model_copy(update={"samples": samples})
    return params.model_copy(update=changed)


def _require_whole_draws(params: Params, champion: OutcomeRecord | None) -> None:
    """Raise UserError where the champion's outcomes are of other draws than a sequential run has."""
    if champion is None or not set(params.gate.maximum_regression) - {"clean/accuracy"}:
        return
    for family, name, entry in entries(params):
        if entry.samples.n is not None and entry.samples.n < len(champion.samples):
            raise UserError(
                f"{family}.{name}.samples.n: the champion was assessed by this entry on {entry.samples.n} samples, and "
                f"--sequential runs it on all; remove the key, or gate.maximum_regression, or do without --sequential"
            )


def joined(records: Sequence[OutcomeRecord], samples: Sequence[str] = ()) -> OutcomeRecord:
    """Return one record of all batches, in the order of `samples`, which pairs need; in their own without."""
    names = [name for record in records for name in record.samples]
    positions, samples = {name: i for i, name in enumerate(names)}, tuple(samples or names)
    rows: dict[str, Outcomes | Shares] = {}
    for name, first in records[0].outcomes.items():
        column = "right" if isinstance(first, Shares) else "held"
        values = [value for record in records for value in getattr(record.outcomes[name], column)]
        ordered = [values[positions[sample]] for sample in samples]
        if isinstance(first, Shares):
            rows[name] = replace(first, right=tuple(ordered))
        else:
            rows[name] = replace(first, held="".join(ordered))
    return replace(records[0], samples=samples, outcomes=rows)
