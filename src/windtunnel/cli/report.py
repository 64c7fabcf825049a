"""`windtunnel report` and `windtunnel evidence`: the last run as a document, and as one file for an auditor."""

import webbrowser
from pathlib import Path

import click

from windtunnel.boundary.mlflow_server import tracking_uri
from windtunnel.boundary.params import load_params
from windtunnel.cli.output import OutputPath
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.operations.dvc_files import require_whole_files
from windtunnel.params.results import MAX_TITLE, Report
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.layout import PARAMS_FILE, REPORT, REPORTS, ROBUSTNESS
from windtunnel.runtime.credentials import reason_of, without_credentials

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--reports", type=_FOLDER, default=REPORTS, show_default=True, help="Where the artifacts are.")
@click.option(
    "--output",
    type=OutputPath("report.pdf", "report.html", is_folder=True),
    default=Path("report"),
    show_default=True,
    help="Where report.pdf and report.html go.",
)
@click.option("--only", multiple=True, help="Only these assessments, for example --only pgd or --only attacks.pgd.")
@click.option(
    "--compact/--full", default=None, help="A PDF of few pages, or everything; as in params.yaml where absent."
)
@click.option(
    "--scope", type=click.Choice(["per_sample", "per_assessor"]), help="Pictures sample by sample, or attack by attack."
)
@click.option("--paper", type=click.Choice(["A4", "Letter"]), help="Of the PDF; as in params.yaml where absent.")
@click.option("--title", help="The title; that of params.yaml where absent.")
@click.option("--open", "open_it", is_flag=True, help="Open the HTML in a browser.")
def report(
    *,
    reports: Path,
    output: Path,
    only: tuple[str, ...],
    compact: bool | None,
    scope: str | None,
    paper: str | None,
    title: str | None,
    open_it: bool,
) -> None:
    """Build report.pdf and report.html, with the date and the commit of the results, which the stage's own files leave out.

    Needs no DVC: any directories in the form of the artifact contract will do. No output of DVC is touched.

    \b
    Examples:
      windtunnel report --open
      windtunnel report --only attacks.pgd --only cascade --output pgd-report
      windtunnel report --full --scope per_assessor
      windtunnel report --reports ../other-run/reports
    """  # noqa: D301
    from windtunnel.reporting.report.build import build_report
    from windtunnel.reporting.report.html import render_html
    from windtunnel.reporting.report.pdf import render_pdf

    if title and len(title) > MAX_TITLE:
        raise UserError(f"--title: has {len(title)} characters; {MAX_TITLE} at most")
    if not reports.is_dir():
        raise UserError(f"--reports: {reports} is no folder; run dvc repro first")
    if not any((reports / ROBUSTNESS.name).glob(f"*/{METADATA_FILE}")):
        raise UserError(
            f"--reports: {reports} has no results (no {ROBUSTNESS.name}/*/{METADATA_FILE}); run dvc repro first"
        )
    if output.resolve() == (reports / REPORT.name).resolve():
        raise UserError(f"--output {output}: holds the report of the pipeline, an output of DVC; name another folder")
    layout = None if compact is None else "compact" if compact else "full"
    options_given = {"layout": layout, "figure_scope": scope, "paper": paper, "title": title}
    of_file = load_params().report if reports == REPORTS and PARAMS_FILE.is_file() else Report()
    options = of_file.model_copy(update={key: value for key, value in options_given.items() if value is not None})
    built = build_report(reports, options, _names(reports, only) if only else None, dated=True)
    for render, file in ((render_pdf, "report.pdf"), (render_html, "report.html")):
        render(built, output / file)
        click.echo(output / file)
    if open_it:
        webbrowser.open((output / "report.html").resolve().as_uri())


def _names(reports: Path, only: tuple[str, ...]) -> list[str]:
    """`attacks.pgd` or `pgd` as `pgd`. Raises UserError, with the nearest name, where there is no such directory."""
    from windtunnel.reporting.report.collect import known_assessments

    available = known_assessments(reports)
    names = [name.rsplit(".", 1)[-1] for name in only]
    for name in names:
        if name not in available:
            raise UserError(unknown_word("--only", name, available, what=f"an assessment in {reports}"))
    return names


@click.command()
@click.option("--output", type=OutputPath(".zip"), default=Path("evidence.zip"), show_default=True)
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
    from windtunnel.operations.evidence.pack import write_evidence
    from windtunnel.operations.tracking.state import read_state
    from windtunnel.operations.tracking.store import tag_state

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
