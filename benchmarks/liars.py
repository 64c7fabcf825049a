"""Do the sanity checks catch every liar, and leave every honest model alone? The tables, and what they cost.

    python benchmarks/liars.py [--honest] [--profiles standard full] [--models 14] [--budgets 3] [--write docs/liars.md]

Liars are assessed with FGSM and PGD alone, as by a hurried user; `caught` is any HARD or WARN finding but those that flag
every such run (F2: few samples, D11: the same, C20: no black-box attack). Honest models are assessed with FGSM, PGD,
Square, CW, FAB, the profile standard and a cascade of verifiers at three budgets; each entry is evaluated alone, and all together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gallery.case import EVERYWHERE, NAIVE, Caught, evaluate, outcome_of, params_of, run_in, subject_with
from benchmarks.gallery.honest import models
from benchmarks.gallery.liars import liars
from windtunnel.evaluation.sanity.evidence import Evidence

BUDGETS = (0.03, 0.1, 0.25)
ALL = "all of them"


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
    "liars": """# Liars

Written by `python benchmarks/liars.py --write docs/gallery-liars.md`: models, data, attacks and verifiers that give a number which is not
true, assessed with FGSM and PGD alone on 60 digits at Linf 0.1, and which checks of the default profile flagged them.
""",
    "honest": """# Honest models

Written by `python benchmarks/liars.py --honest --profiles stored standard --samples 30 --models 5 --write docs/gallery-honest.md`: honest
models at three budgets under FGSM, PGD, Square, CW, FAB, the profile standard and a cascade of verifiers, each entry alone and all
together. Entries alone are counted and shown only where a check flagged them. HARD and WARN leave out what flags in every such run.
""",
}


def table_of_liars(profiles: tuple[str, ...], n: int) -> Iterator[str]:
    """A row per liar, and the count."""
    yield "| liar | profile | seems robust | HARD | WARN | run, s | checks, s |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    seen = caught = 0
    for case in liars(n):
        for found in evaluate(case, profiles):
            seen, caught = seen + 1, caught + found.caught
            hard, warn = (" ".join(i for i in ids if i not in EVERYWHERE) or "-" for ids in (found.hard, found.warn))
            hard = hard if found.caught else "**missed**"
            yield (
                f"| {found.case} | {found.profile} | {found.robust:.0%} | {hard} | {warn} | {found.run_seconds:.1f} | "
                f"{found.check_seconds:.1f} |"
            )
    yield ""
    yield f"Caught: {caught} of {seen}."


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
                f"| {found.case} | {epsilon:g} | {entry} | {found.profile} | {found.robust:.0%} | {' '.join(found.hard) or '-'} | "
                f"{' '.join(warn) or '-'} | {found.run_seconds:.1f} | {found.check_seconds:.1f} |"
            )
    yield ""
    yield f"Combinations: {seen}. With a HARD failure: {accused}. With more than one WARN: {crowded}."


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--honest", action="store_true", help="the honest models; the liars where absent")
    parser.add_argument("--profiles", nargs="+", default=["standard"], choices=["stored", "standard", "full"])
    parser.add_argument("--models", type=int, default=14)
    parser.add_argument("--budgets", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--write", type=Path, help="a file to which the table is written too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profiles, lines = tuple(options.profiles), []
    rows = (
        table_of_honest(profiles, options.models, BUDGETS[: options.budgets], options.samples)
        if options.honest
        else table_of_liars(profiles, options.samples)
    )
    for line in rows:
        print(line, flush=True)
        lines.append(line)
    if options.write:
        head = HEAD["honest" if options.honest else "liars"]
        options.write.write_text(head + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
