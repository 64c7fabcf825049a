"""From the artifacts on disk to a Report. Works on any set of directories; what is missing is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from windtunnel.params.outcome import Report as Options
from windtunnel.reporting.report.collect import Found, collect
from windtunnel.reporting.report.glossary import GLOSSARY
from windtunnel.reporting.report.guard import ODD_METADATA, guarded
from windtunnel.reporting.report.model import Finding, Report, Section
from windtunnel.reporting.report.names import without_names
from windtunnel.reporting.report.sections import front
from windtunnel.reporting.report.sections.clean import clean_section
from windtunnel.reporting.report.sections.families import family_sections
from windtunnel.reporting.report.sections.reproducibility import reproducibility_section
from windtunnel.reporting.report.sections.samples import samples_appendix
from windtunnel.reporting.report.sections.sanity import gate_section, sanity_section, warnings_of
from windtunnel.reporting.report.sections.subject import subject_section
from windtunnel.reporting.report.sections.verdict import hard_failures, verdict


def build_report(
    reports: Path, options: Options | None = None, names: Iterable[str] | None = None, *, gate: bool = True
) -> Report:
    """The report on the artifacts below `reports`, of the assessments `names` (all where absent; see `collect`).

    `gate`: with the gate's verdict, where there is one.
    """
    options, found = options or Options(), collect(reports, names, gate=gate)
    if not options.show_sample_names:
        found = without_names(found)
    try:
        return _report(found, options)
    except ODD_METADATA as error:
        # Each part that shows one assessment is guarded; what is left is the summary.
        line = f"The summary is missing from this report: its metadata is of another version ({error!r})"
        return _report(replace(found, summary=None, problems=(*found.problems, line)), options)


def _report(found: Found, options: Options) -> Report:
    return Report(
        title=options.title,
        subtitle=front.subtitle(found),
        verdict=verdict(found.summary, len(found.assessments)),
        alarms=tuple(
            Finding("invalid", f"This number must not be believed: {line}") for line in hard_failures(found.summary)
        ),
        tiles=tuple(front.tiles(found.summary)),
        sandwich=front.sandwich_chart(found.summary),
        findings=front.findings(found),
        caveats=front.caveats(found, warnings_of(found.checks)),
        sections=tuple(_sections(found, options)),
        samples=samples_appendix(found),
        glossary=GLOSSARY,
    )


def _sections(found: Found, options: Options) -> Iterator[Section]:
    clean, checks, gate = found.clean, found.checks, found.gate
    yield subject_section(found, options)
    if clean is not None:
        yield guarded("Clean performance", lambda: clean_section(clean, found, options))
    yield from family_sections(found, options)
    if checks is not None:
        yield guarded("Sanity checks", lambda: sanity_section(checks))
    if gate is not None:
        yield guarded("The gate", lambda: gate_section(gate))
    yield reproducibility_section(found)
