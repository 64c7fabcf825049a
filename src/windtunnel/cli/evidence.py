"""`windtunnel evidence`: the last run in one file, for an auditor."""

from __future__ import annotations

from pathlib import Path

import click

from windtunnel.cli.output import OutputFile


@click.command()
@click.option("--output", type=OutputFile(".zip"), default=Path("evidence.zip"), show_default=True)
@click.option(
    "--sign", "key", type=click.Path(path_type=Path, dir_okay=False), help="Sign it with this OpenSSH key (Ed25519)."
)
@click.option(
    "--benchmark",
    metavar="OWNER/NAME",
    help="Also eval_results.yaml for the leaderboard of this dataset on Hugging Face's hub.",
)
def evidence(*, output: Path, key: Path | None, benchmark: str | None) -> None:
    """Pack report, metadata, dvc.lock, digests and environment of the last run, with a script that verifies the digests.

    Also a section for a model card, and what was measured under EU AI Act Article 15 and ISO/IEC 24029-2, each sentence with its
    file and digest, with the clauses that nothing here covers. Results that differ from dvc.lock are refused. The root digest
    is printed and logged to MLflow: `python verify.py --expect ROOT` finds every change.

    \b
    Examples:
      windtunnel evidence --output pack.zip
      windtunnel evidence --sign ~/.ssh/id_ed25519
    """  # noqa: D301
    from windtunnel.boundary.mlflow_server import tracking_uri
    from windtunnel.boundary.params import load_params
    from windtunnel.operations.dvc_files import require_whole_files
    from windtunnel.operations.evidence.pack import write_evidence
    from windtunnel.operations.tracking.state import read_state
    from windtunnel.operations.tracking.store import tag_state
    from windtunnel.runtime.credentials import reason_of, without_credentials

    require_whole_files()
    pack = write_evidence(output, key, benchmark)
    click.echo(f"evidence: {pack.n_files} files in {output}; root digest sha256:{pack.root}")
    click.echo("python verify.py checks them where it is unpacked; with --expect ROOT against this digest")
    tracking = load_params().tracking
    uri = tracking_uri(tracking.uri)
    try:
        run = tag_state(read_state().digest, tracking.experiment, uri, {"windtunnel.evidence.root": pack.root})
    except Exception as error:  # MLflow, SQLAlchemy and requests raise what they like
        click.echo(f"evidence: the root digest is not logged: {without_credentials(uri)}: {reason_of(error)}", err=True)
    else:
        where = (
            f"logged to MLflow run {run}" if run else "not logged: this state is not in MLflow yet; windtunnel track"
        )
        click.echo(f"evidence: the root digest is {where}", err=not run)
