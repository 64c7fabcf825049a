"""`windtunnel evidence`: the last run in one file, for an auditor."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("evidence.zip"), show_default=True
)
def evidence(*, output: Path) -> None:
    """Pack report, metadata, dvc.lock, digests and environment of the last run, with a script that verifies the digests.

    Also a section for a model card, and what was measured under EU AI Act Article 15 and ISO/IEC 24029-2, each sentence with its
    file and digest, with the clauses that nothing here covers.

    \b
    Example:
      windtunnel evidence --output pack.zip
    """  # noqa: D301
    from windtunnel.operations.evidence.pack import write_evidence

    click.echo(
        f"evidence: {write_evidence(output)} files in {output}; python verify.py checks them where it is unpacked"
    )
