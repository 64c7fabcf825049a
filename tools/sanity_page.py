"""docs/sanity.md, generated from the registry: `python -m tools.sanity_page`."""

from collections.abc import Iterator
from pathlib import Path

from windtunnel.evaluation.sanity.assess import NECESSARY
from windtunnel.evaluation.sanity.check import GROUPS, Tier
from windtunnel.evaluation.sanity.run import registry

PAGE = Path("docs/sanity.md")
_TIERS = {
    Tier.STORED: "tensors and metadata on disk; always",
    Tier.PASSES: "passes over the model, and short attacks, the witness (D15) among them; by default",
    Tier.ATTACKS: "attacks rerun on at most `sanity.samples` samples; `sanity.profile: full`",
}


# Measured by random draws of the test sets (5 for A18, 2,000 for A10) and by networks of 75 to 97 % accuracy.
_HONEST_DATA = """
What A10, A18 and A20 find in honest data: of 100, 200 and 1,000 samples drawn from digits, MNIST, Fashion-MNIST and CIFAR-10, A18 names
none. It names 1 of 2,000 samples of the MNIST test set and 2 of Fashion-MNIST. Of 500 test samples A20 names 0 of MNIST and 2 of
Fashion-MNIST. Noise of deviation 0.03, a grey level and a shift by one pixel are found in at least 97 % of all copies. A10 warns in at
most 1.9 % of draws of 60 samples, for a network of 97 %; it warns in 98 % of draws of 100 samples that a network of 86 % got right."""
_COST = """
What T1 costs is bounded by the witness (D15): a fifth of the passes of the run's attacks, or 20 x 200 where that is more. On 60 digits of
8x8 that is 0.4 to 1 s of one core."""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Sanity checks"
    yield ""
    yield "Generated from the registry by `python -m tools.sanity_page`; `windtunnel sanity --explain C3` says more."
    yield f"{NECESSARY}"
    yield ""
    yield "HARD: the number is not valid, and the gate says so (exit code 20). WARN: robustness may be overestimated. INFO: worth"
    yield "knowing. `not_run` and `not_applicable` are shown with their reason: silence never reads as pass."
    yield ""
    for tier, meaning in _TIERS.items():
        yield f"- **{tier}**: {meaning}."
    yield _COST
    yield _HONEST_DATA
    for letter, title in GROUPS.items():
        yield ""
        yield f"## {letter}. {title}"
        yield ""
        yield "| id | check | tier | severity | threshold | what to do | source |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        for row in registry().values():
            if row.group == letter:
                limit = "" if row.threshold is None else f"{row.threshold:.4g}"
                cells = [row.id, row.title, row.tier, row.severity, limit, row.remedy, row.source]
                yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
