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
_COST = """
The witness (D15) bounds what T1 costs: a fifth of the passes of the run's attacks, or 20 x 200 where that is more. How often checks flag
faulty and honest runs: [measurements](benchmarks/sanity.md)."""


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Sanity checks"
    yield ""
    yield "After this page you can look up what each sanity check looks at, and what to do when it is flagged."
    yield ""
    yield "Generated from the registry by `python -m tools.sanity_page`; `windtunnel sanity --explain C3` says more."
    yield f"{NECESSARY}"
    yield ""
    yield "HARD: the number is not valid, and the gate says so (exit code 20). WARN: robustness may be overestimated. INFO: worth"
    yield "knowing. `not_run` and `not_applicable` are shown with their reason: silence never reads as pass."
    yield "A check that fails to run, as on a model that raises, is a warning."
    yield ""
    for tier, meaning in _TIERS.items():
        yield f"- **{tier}**: {meaning}."
    yield _COST
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
