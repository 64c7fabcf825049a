"""Do the sanity checks catch every faulty model and run, and leave every honest one alone? The tables, and what they cost.

    python -m benchmarks.liars [--honest | --honest-runs] [--profiles standard full] [--models 14] [--budgets 3] [--write docs/liars.md]

Faulty models are assessed with FGSM and PGD alone, as by a hurried user, and faulty runs as they say; `caught` is any HARD or WARN
finding but those that flag every such run (F2: few samples, D11: the same, C20: no black-box attack). Honest models are assessed
with FGSM, PGD, Square, CW, FAB, the profile standard and a cascade of verifiers at three budgets; each entry is evaluated alone, and
all together.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from benchmarks.gallery.case import (
    EVERYWHERE,
    NAIVE,
    Case,
    Caught,
    evaluate,
    outcome_of,
    params_of,
    run_in,
    subject_with,
)
from benchmarks.gallery.further import further
from benchmarks.gallery.honest import models
from benchmarks.gallery.honest_runs import further_honest, honest_runs
from benchmarks.gallery.liars import liars
from benchmarks.gallery.truth import true_robust_accuracy
from windtunnel.evaluation.sanity.evidence import Evidence

BUDGETS = (0.03, 0.1, 0.25)
ALL = "all of them"
OVERSTATED = 0.1  # above the true robust accuracy: not to be missed


def thorough(epsilon: float) -> dict[str, Mapping[str, object]]:
    """Every family of attack that a careful user would run, and a cascade of verifiers."""
    l2 = {"norm": "L2", "epsilon": 4 * epsilon}
    return {
        "attacks": {
            **NAIVE,
            "pgd": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": epsilon / 8}},
            "square": {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 300}},
            "cw": {"library": "torchattacks", "algorithm": "CW", "params": {"c": 2, "lr": 0.03}, "budget": {**l2, "steps": 100}},
            "fab": {"library": "torchattacks", "algorithm": "FAB", "budget": {"steps": 20}},
            "standard": {"library": "windtunnel", "algorithm": "standard"},
        },
        "verification": {
            "cascade": {
                "library": "windtunnel", "algorithm": "cascade",
                "samples": {"n": 6}, "timeout": 2, "time_budget": 10,
            },
        },
    }  # fmt: skip


def alone(evidence: Evidence, name: str) -> Evidence:
    """The same run as if this entry had been its only one."""
    family = evidence.families[name]
    emptied = {f: {} for f in ("attacks", "verification")}
    kept = {**emptied, family: {name: getattr(evidence.params, family)[name]}}
    return replace(
        evidence,
        params=evidence.params.model_copy(update=kept),
        assessments=tuple(p for p in evidence.assessments if p.name == name),
        families={name: family},
        notes={},
    )


def honest(
    profiles: tuple[str, ...], count: int, budgets: tuple[float, ...], n: int
) -> Iterator[tuple[str, float, Caught]]:
    """(entry, epsilon, what was flagged) of every honest model at every budget."""
    for name, (module, (assessed, train)) in list(models(n).items())[:count]:
        for epsilon in budgets:
            run = {**thorough(epsilon), "budget": {"norm": "Linf", "epsilon": epsilon}}
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                evidence = run_in(Path(folder), subject_with(module, assessed), params_of(run), train)
                seconds = time.perf_counter() - started
                for entry in (assessment.name for assessment in evidence.assessments):
                    yield entry, epsilon, outcome_of(name, alone(evidence, entry), "standard", seconds)
                for profile in profiles:
                    yield ALL, epsilon, outcome_of(name, evidence, profile, seconds)


HEAD = {
    "faulty": """# Faulty models and runs

After this page you know which faulty models and runs the default profile catches.

Written by `python -m benchmarks.liars --write docs/benchmarks/liars.md`: models, data, attacks and verifiers that give a number which
is not true, assessed on 60 digits with FGSM and PGD alone at Linf 0.1, or as their name says, and which checks of the default profile
flagged them. *Seems* is the robust accuracy that the run states (where there are no attacks, the certified accuracy; `-` where every
entry refused the model, so that the run states nothing). *True* is what a
much stronger attack leaves, which knows what the model hides: an upper bound, and `-` where a model has no gradient and no stand-in.
HARD is expected where the run states more than 10 points above the truth.
""",
    "runs": """# Honest runs

After this page you know which checks flag honest runs off the beaten path.

Written by `python -m benchmarks.liars --honest-runs --write docs/benchmarks/honest-runs.md`: honest runs off the beaten path (soft votes,
L2 and L1, attacks of one's own, certificates alone, few samples, tables), and which checks of the default profile flagged them.
""",
    "honest": """# Honest models

After this page you know which checks flag honest models.

Written by `python -m benchmarks.liars --honest --profiles stored standard --samples 30 --models 5 --write docs/benchmarks/honest.md`:
honest models at three budgets under FGSM, PGD, Square, CW, FAB, the profile standard and a cascade of verifiers, each entry alone and all
together. Entries alone are counted and shown only where a check flagged them. HARD and WARN leave out what flags in every such run.
""",
}


def _true(case: Case) -> float | None:
    """Return what a strong attack leaves of a case; None where there is no gradient to follow.

    A copy of the model is asked: one that counts its calls is otherwise another one in the run.
    """
    subject = case.subject
    module = copy.deepcopy(subject.classifier.module)
    copied = replace(subject, classifier=replace(subject.classifier, module=module))
    try:
        return true_robust_accuracy(replace(case, subject=copied))
    except RuntimeError:  # the graph is interrupted
        return None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def table_of_cases(cases: Iterator[Case], profiles: tuple[str, ...], caught: str) -> Iterator[str]:
    """Yield a row per case and profile, and how many were caught."""
    yield "| case | profile | seems robust | true, at most | HARD | WARN | run, s | checks, s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    count = flagged = failed = overstated = overstated_failed = 0
    for case in cases:
        true = _true(case)
        for row in evaluate(case, profiles):
            too_high = true is not None and row.robust is not None and row.robust - true > OVERSTATED
            count, flagged, failed = count + 1, flagged + row.caught, failed + bool(row.hard)
            overstated, overstated_failed = overstated + too_high, overstated_failed + (too_high and bool(row.hard))
            hard, warn = (" ".join(i for i in ids if i not in EVERYWHERE) or "-" for ids in (row.hard, row.warn))
            yield (
                f"| {row.case} | {row.profile} | {_percent(row.robust)} | {_percent(true)} | {hard} | {warn} | "
                f"{row.run_seconds:.1f} | {row.check_seconds:.1f} |"
            )
    yield ""
    yield f"{caught}: {flagged} of {count}. With a HARD failure: {failed}."
    yield f"More than 10 points above the truth: {overstated}, of these with a HARD failure: {overstated_failed}."


def table_of_honest(profiles: tuple[str, ...], count: int, budgets: tuple[float, ...], n: int) -> Iterator[str]:
    """A row per model, budget and profile with all entries; entries alone are counted, and shown where they were flagged."""
    yield "| model | epsilon | entry | profile | robust | HARD | WARN | run, s | checks, s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    seen = accused = crowded = 0
    for entry, epsilon, found in honest(profiles, count, budgets, n):
        warn = [i for i in found.warn if i not in EVERYWHERE]
        seen, accused, crowded = seen + 1, accused + bool(found.hard), crowded + (len(warn) > 1)
        if entry == ALL or found.hard or warn:
            yield (
                f"| {found.case} | {epsilon:g} | {entry} | {found.profile} | {_percent(found.robust)} | {' '.join(found.hard) or '-'} | "
                f"{' '.join(warn) or '-'} | {found.run_seconds:.1f} | {found.check_seconds:.1f} |"
            )
    yield ""
    yield f"Combinations: {seen}. With a HARD failure: {accused}. With more than one WARN: {crowded}."


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--honest", action="store_true", help="the honest models; the faulty cases where absent")
    parser.add_argument("--honest-runs", action="store_true", help="the honest runs off the beaten path")
    parser.add_argument(
        "--further", action="store_true", help="faulty and honest cases the checks were not built on; no --write"
    )
    parser.add_argument("--profiles", nargs="+", default=["standard"], choices=["stored", "standard", "full"])
    parser.add_argument("--models", type=int, default=14)
    parser.add_argument("--budgets", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--write", type=Path, help="a file to which the table is written too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profiles, lines = tuple(options.profiles), []
    kind = "honest" if options.honest else "runs" if options.honest_runs else "faulty"
    if options.further:
        rows = table_of_cases(chain(further(options.samples), further_honest(options.samples)), profiles, "Flagged")
        options.write = None
    elif kind == "honest":
        rows = table_of_honest(profiles, options.models, BUDGETS[: options.budgets], options.samples)
    elif kind == "runs":
        rows = table_of_cases(honest_runs(options.samples), profiles, "Flagged")
    else:
        rows = table_of_cases(liars(options.samples), profiles, "Caught")
    for line in rows:
        print(line, flush=True)
        lines.append(line)
    if options.write:
        options.write.write_text(HEAD[kind] + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
