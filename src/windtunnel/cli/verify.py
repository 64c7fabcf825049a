"""`windtunnel verify`: one instance of VNN-LIB, or an audit of verdicts that were reached before."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--vnnlib", "specification", type=click.Path(path_type=Path, dir_okay=False), help="The specification.")
@click.option("--onnx", type=click.Path(path_type=Path, dir_okay=False), help="The graph that it is about.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds; without it work alone is limited."
)
@click.option("--result", type=click.Path(path_type=Path, dir_okay=False), help="Write the answer into this file too.")
def verify(*, specification: Path | None, onnx: Path | None, timeout: float | None, result: Path | None) -> None:
    """Decide a VNN-LIB instance: sat with a counter-example, unsat, unknown, or timeout, as in the competition.

    \b
    Example:
      windtunnel verify --vnnlib spec.vnnlib --onnx net.onnx --timeout 60
    """  # noqa: D301
    if specification is None or onnx is None:
        raise click.UsageError("give --vnnlib FILE and --onnx FILE")
    from windtunnel.assessments.verification.vnnlib.instance import decide_instance
    from windtunnel.params.verification import VerificationEntry

    limits = {} if timeout is None else {"timeout": timeout, "time_budget": timeout}
    entry = VerificationEntry.model_validate({"library": "windtunnel", "algorithm": "cascade", **limits})
    answer = decide_instance(onnx, specification, entry).text()
    click.echo(answer)
    if result is not None:
        result.write_text(f"{answer}\n")
