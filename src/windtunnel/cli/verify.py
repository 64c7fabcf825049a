"""`windtunnel verify` and `windtunnel vnnlib`: instances of VNN-LIB, and an audit of verdicts that were reached before."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path

import click
import psutil

from windtunnel.boundary.writing import check_output
from windtunnel.cli.output import FiniteRange, OutputPath
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.records.files import replacing
from windtunnel.runtime.supervised import EndedError, limited, run_watched

_GRACE = 1.0  # seconds after the deadline in which an answer is still taken


@click.command()
@click.option("--vnnlib", "specification", type=click.Path(path_type=Path, dir_okay=False), help="The specification.")
@click.option(
    "--onnx", type=click.Path(path_type=Path, dir_okay=False), help="The ONNX graph that the instance is about."
)
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True),
    help="Time limit in seconds; without it only the search effort is limited.",
)
@click.option(
    "--result",
    type=OutputPath(".txt", ".result", ".counterexample", ".out", ""),
    help="Also write the result into this file.",
)
@click.option("--audit", metavar="NAME", help="Check the verdicts of a verification of the last run again.")
@click.option(
    "--verdicts",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many verdicts to check with another tool.",
)
def verify(
    *,
    specification: Path | None,
    onnx: Path | None,
    timeout: float | None,
    result: Path | None,
    audit: str | None,
    verdicts: int,
) -> None:
    """Decide a VNN-LIB instance: sat with a counter-example, unsat, unknown, or timeout, as in the competition.

    With --audit: attack every certified sample in float64, and ask another implementation for some of the verdicts. Exit code 1
    where one is contradicted; sanity check E15 does the same on fewer samples.

    \b
    Examples:
      windtunnel verify --vnnlib spec.vnnlib --onnx net.onnx --timeout 60
      windtunnel verify --audit proof
    """  # noqa: D301
    if (audit is None) == (specification is None) or (specification is None) != (onnx is None):
        raise click.UsageError("give --vnnlib FILE and --onnx FILE, or --audit NAME")
    if audit is not None:
        _audit(audit, verdicts)
        return
    assert specification is not None
    assert onnx is not None
    if result is not None:
        check_output(result, where="--result", inputs=[specification, onnx])
    deadline = math.inf if timeout is None else _process_start() + timeout
    try:  # in a process of its own: a graph can end it, and hang in C
        answer = run_watched(_decided, onnx, specification, timeout, deadline)
    except EndedError as error:
        raise UserError(f"{onnx}: {error}") from error
    except UserError:
        if time.monotonic() < deadline:
            raise
        answer = "timeout"
    click.echo(answer)
    if result is not None:
        with replacing(result) as temporary:
            temporary.write_text(f"{answer}\n", encoding="utf-8")


def _decided(onnx: Path, specification: Path, timeout: float | None, deadline: float) -> str:
    from windtunnel.assessments.verification.vnnlib import decide_instance
    from windtunnel.params.verification import VerificationEntry

    limit = {} if timeout is None else {"timeout": timeout}
    entry = VerificationEntry.model_validate({"library": "windtunnel", "algorithm": "cascade", **limit})
    seconds = max(0.0, deadline - time.monotonic()) + _GRACE
    with nullcontext() if deadline == math.inf else limited(f"{onnx}: the verifier", seconds, "--timeout"):
        return decide_instance(onnx, specification, entry, deadline=deadline).text()


def _process_start() -> float:
    """Return the start of this process on the clock of `time.monotonic`: imports are part of the user's timeout."""
    return time.monotonic() - (time.time() - float(psutil.Process().create_time()))


def _audit(name: str, verdicts: int) -> None:
    from windtunnel.assessments.clean.subject import current_subject
    from windtunnel.boundary.params import load_params
    from windtunnel.evaluation.sanity.agreement import audited, balls
    from windtunnel.evaluation.sanity.evidence import collect
    from windtunnel.records.artifacts import read_artifacts
    from windtunnel.records.layout import CLEAN, ROBUSTNESS

    params = load_params()
    if name not in params.verification:
        raise UserError(unknown_word("--audit", name, params.verification, what="a verification of params.yaml"))
    subject = current_subject(params.device, params.seed, params.model)
    evidence = collect(params, subject, read_artifacts(CLEAN), ROBUSTNESS)
    if name in evidence.unusable:
        raise UserError(f"--audit {name}: {evidence.unusable[name]}")
    assessments = {assessment.name: (assessment, ball) for assessment, ball in balls(evidence)}
    if name not in assessments:
        raise UserError(
            f"--audit {name}: a certificate of a smoothed model cannot be attacked in the model's own inputs"
        )
    verification, ball = assessments[name]
    audit = audited(subject, verification, ball, certified=len(subject.dataset), n_verdicts=verdicts)
    click.echo(f"{name}: {audit.attacked} certified samples attacked in float64, {len(audit.broken)} broken")
    why = f" ({audit.unasked})" if audit.unasked else ""
    n_left = audit.asked - audit.agreed - len(audit.contradicted)
    click.echo(
        f"{name}: {audit.asked} verdicts checked by another implementation{why}: {audit.agreed} reached again, "
        f"{n_left} not decided by it, {len(audit.contradicted)} contradicted"
    )
    if wrong := sorted({*audit.broken, *audit.contradicted}):
        click.echo(f"{name}: contradicted: {', '.join(wrong)}", err=True)
        raise SystemExit(1)


@click.group()
def vnnlib() -> None:
    """Instances of VNN-LIB, for other verifiers; `windtunnel verify --vnnlib` decides one."""


@vnnlib.command()
@click.argument("name")
@click.option("--to", "folder", type=OutputPath(is_folder=True), help="Where to; vnnlib/NAME if not given.")
def export(*, name: str, folder: Path | None) -> None:
    """Write every sample of the verification NAME as an instance: model.onnx, vnnlib/*.vnnlib, instances.csv.

    \b
    Example:
      windtunnel vnnlib export proof --to /tmp/proof
    """  # noqa: D301
    from windtunnel.assessments.clean.subject import current_subject
    from windtunnel.assessments.verification.vnnlib import export_instances
    from windtunnel.boundary.params import load_params

    params = load_params()
    entry = params.verification.get(name)
    if entry is None:
        raise UserError(unknown_word("vnnlib export", name, params.verification, what="a verification of params.yaml"))
    subject = current_subject(params.device, params.seed, params.model)
    seed = params.seed if entry.samples.seed is None else entry.samples.seed
    subject = subject.choose(entry.samples.n, entry.samples.selection, seed)
    region = entry.budget.over(params.budget)
    assert region.epsilon is not None  # verifiers need one, and the schema says so
    folder = folder or Path("vnnlib") / name
    written = export_instances(name, subject, region.norm, region.epsilon, entry.timeout, folder)
    click.echo(f"{folder}: {len(written)} instances, instances.csv, model.onnx")
