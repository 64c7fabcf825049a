"""From the artifacts on disk to a Report. Works on any set of directories; what is missing is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from windtunnel.params.results import Report as Options
from windtunnel.reporting.report.collect import Found, collect
from windtunnel.reporting.report.glossary import GLOSSARY
from windtunnel.reporting.report.guard import ODD_METADATA, guarded
from windtunnel.reporting.report.model import Report, Section
from windtunnel.reporting.report.sections.clean import CLEAN, clean_section
from windtunnel.reporting.report.sections.families import family_sections
from windtunnel.reporting.report.sections.front import front
from windtunnel.reporting.report.sections.reproducibility import reproducibility_section
from windtunnel.reporting.report.sections.samples import samples_appendix
from windtunnel.reporting.report.sections.sanity import SANITY, checks_appendix, gate_section, sanity_section


def build_report(
    reports: Path, options: Options | None = None, names: Iterable[str] | None = None, *, dated: bool = False
) -> Report:
    """The report on the artifacts below `reports`, of the assessments `names` (all where absent; see `collect`).

    `dated`: with the date, the commit and the run times of the results, where runtime.json has them; without, equal artifacts
    give equal files.
    """
    options = options or Options()
    found = collect(reports, names, named=options.show_sample_names, measured=dated)
    try:
        return _report(found, options)
    except ODD_METADATA as error:
        # Each part that shows one assessment is guarded; what is left is the summary.
        line = f"The summary is missing from this report: its metadata is of another version ({error!r})"
        return _report(replace(found, summary=None, problems=(*found.problems, line)), options)


def _report(found: Found, options: Options) -> Report:
    return Report(
        title=options.title,
        front=front(found),
        sections=tuple(_sections(found, options)),
        samples=samples_appendix(found),
        glossary=GLOSSARY,
        full=options.layout == "full",
        paper=options.paper,
    )


def _sections(found: Found, options: Options) -> Iterator[Section]:
    """A section per question that a reader asks, in the order of asking."""
    clean, checks, gate = found.clean, found.checks, found.gate
    if clean is not None:
        yield guarded(CLEAN, lambda: clean_section(clean, found, options))
    yield from family_sections(found, options)
    if checks is not None:
        yield guarded(SANITY, lambda: sanity_section(checks, gate))
    elif gate is not None:
        yield guarded("The gate", lambda: gate_section(gate))
    yield reproducibility_section(found)
    if checks is not None:
        yield guarded("Every sanity check", lambda: checks_appendix(checks))
