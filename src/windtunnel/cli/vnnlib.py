"""`windtunnel vnnlib`: a verification in the format of the verification competition."""

from __future__ import annotations

from pathlib import Path

import click

from windtunnel.cli.output import OutputFolder
from windtunnel.core.errors import UserError, unknown_word


@click.group()
def vnnlib() -> None:
    """Instances of VNN-LIB, for other verifiers; `windtunnel verify --vnnlib` decides one."""


@vnnlib.command()
@click.argument("name")
@click.option("--to", "folder", type=OutputFolder(), help="Where to; vnnlib/NAME if not given.")
def export(*, name: str, folder: Path | None) -> None:
    """Write every sample of the verification NAME as an instance: model.onnx, vnnlib/*.vnnlib, instances.csv.

    \b
    Example:
      windtunnel vnnlib export proof --to /tmp/proof
    """  # noqa: D301
    from windtunnel.assessments.clean.subject import current_subject
    from windtunnel.assessments.verification.vnnlib.export import export_instances
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
