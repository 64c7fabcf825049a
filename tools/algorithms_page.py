"""docs/algorithms.md, written from the registry: `python -m tools.algorithms_page`."""

from collections.abc import Iterator
from pathlib import Path

from windtunnel.assessments.attacks.profiles import ADAPTIVE, PROFILES
from windtunnel.assessments.attacks.rows import AttackRow, Targeting
from windtunnel.assessments.attacks.table import ROWS

PAGE = Path("docs/algorithms.md")
_INTRODUCTION = """# Attacks

After this page you can look up every attack, what it needs, and which norms it searches.

Written from the registry by `python -m tools.algorithms_page`; a test keeps it true. Each line was measured, not
copied: `tests/assessments/attacks/test_catalogue.py` runs every algorithm under two seeds, on grey and on colour images, and compares
randomness, budget and threat model with what is said here.

- **norms**: those the budget may be in; `transformations` searches regions such as `{rotation: 10}` ([transformations](transformations.md))
  and is measured by tests of its own. **budget**: `held` attacks get the epsilon, and are projected onto it if they
  exceed it; `own distance` attacks look for their own, and succeed only where that is within the budget
  (`success_rate_any_distance` counts the others); `none` has no norm at all.
- **targets**: whether `target_classes` may be set.
- **random**: whether two seeds give two results; `own seed` where the library takes one, which windtunnel passes.

Notes on single attacks:

- torchattacks APGDT is an untargeted attack that aims at every other class in turn; FAB, APGDT, AutoAttack and JSMA assume ten
  classes by default; windtunnel passes the number of classes.
- torchattacks GN and the additive noise of foolbox never look at the scores of the model: they are decision-based here.
- foolbox's fast gradient attacks, DeepFool, NewtonFool and VirtualAdversarial cannot aim; GenAttack can do nothing else.
- TIFGSM, PIFGSM and PIFGSMPP have kernels for three channels: a grey image is repeated to three channels.
- HopSkipJump, Boundary, Pointwise and Brendel-Bethge attacks walk from a misclassified point: blended or salt-and-pepper
  noise, else the nearest assessed sample of a wrong class. A sample without one is a failure, not an error.
- LGV trains copies of the model on the assessed samples; DatasetAttack answers with other assessed samples.

Where both libraries have an attack (FGSM, BIM, PGD, MIFGSM, EAD), `tests/assessments/attacks/test_two_libraries.py` finds their
adversarial accuracies within two points at equal settings on 200 samples. Two pairs differ, and the test checks that they do:

- DeepFool. torchattacks stops at the first wrong answer for the image alone, its overshoot is of the last step only, and
  the last step is tiny: on a digits CNN 68 of 193 examples lay within 2e-6 of the boundary in logits, where the answer
  changes with the size of the batch (45 of them are wrong alone, right among others). Re-evaluated they are failures:
  65 % succeed at any distance, against 100 % for foolbox, whose overshoot is of the whole perturbation.
- CW. torchattacks has one constant `c` and no search for the best: mean distance .74 to .86 for c 1 to 10, against .57
  for foolbox with five binary search steps.

The defaults of the libraries differ more than their algorithms: torchattacks steps by 2/255 whatever the epsilon, so
ten steps of BIM move at most 0.078; foolbox steps by a share of epsilon. Set `budget.step_size` and `budget.steps` to
compare.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION]
    for library in ("torchattacks", "foolbox", "transformations"):
        rows = [row for row in ROWS.values() if row.algorithm.library == library]
        parts.append(f"## {library} ({len(rows)})\n\n" + "\n".join(_table(rows)) + "\n")
    parts.append("## windtunnel: profiles\n\n" + "\n".join(_profiles()) + "\n")
    return "\n".join(parts)


def _table(rows: list[AttackRow]) -> Iterator[str]:
    yield "| algorithm | threat model | norms | categories | budget | targets | random | note |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        algorithm = row.algorithm
        random = {"deterministic": "no", "global_rng": "yes", "self_seeded": "own seed"}[algorithm.randomness]
        targets = {Targeting.NO: "no", Targeting.YES: "yes", Targeting.REQUIRED: "required"}[row.targeting]
        cells = [
            algorithm.name,
            algorithm.threat_model.value,
            "a transformation" if row.transforms else "any" if algorithm.norm is None else ", ".join(row.allowed_norms),
            ", ".join(sorted(algorithm.categories)),
            _budget(row),
            targets,
            random,
            algorithm.summary,
        ]
        yield "| " + " | ".join(cells) + " |"


def _budget(row: AttackRow) -> str:
    if row.algorithm.norm is None and not row.transforms:
        return "none"
    return "own distance" if row.algorithm.minimum_norm or row.epsilon is None else "held"


def _profiles() -> Iterator[str]:
    yield "Members run one after another, each on the samples that those before it left; `broken_by` says which broke which."
    yield ""
    yield "| profile | norm | members |"
    yield "| --- | --- | --- |"
    for name, by_norm in PROFILES.items():
        for norm, members in by_norm.items():
            more = ", then what answers the obstacles found" if name == ADAPTIVE else ""
            yield f"| {name} | {norm} | {', '.join(member.name for member in members)}{more} |"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
