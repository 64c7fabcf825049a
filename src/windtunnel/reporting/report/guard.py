"""Metadata of another version, or edited by hand, costs its part of the report and a line, never the report."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.reporting.report.model import Finding, Section

ODD_METADATA = (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError, AssertionError)


def guarded(title: str, build: Callable[[], Section]) -> Section:
    """The section, or one that says why it cannot be shown."""
    try:
        return build()
    except ODD_METADATA as error:
        return Section(
            title, (Finding("warning", f"Cannot be shown: its metadata is of another version ({error!r})."),)
        )
