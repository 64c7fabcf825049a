"""`windtunnel check`: everything that can be refused, refused before hours are spent."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from windtunnel.boundary.params import load_params
from windtunnel.boundary.params_file import read_params
from windtunnel.cli.output import OK, FiniteRange
from windtunnel.core.errors import USER_ERROR, UserError
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.validate import validate
from windtunnel.operations.dvc_files import missing_references, require_whole_files
from windtunnel.operations.project.write import GRAPH
from windtunnel.params.load import check_whole, entries
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.runtime.supervised import run_watched

if TYPE_CHECKING:
    from windtunnel.cli.compatibility import Checked


@click.command()
@click.option("--params", "path", type=click.Path(path_type=Path), default=PARAMS_FILE, show_default=True)
@click.option(
    "--queries",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Most queries (samples) to send to a Python predict (model.source: function).",
)
@click.option("--estimate", is_flag=True, help="Run one batch of every entry: time, memory and disk of the whole job.")
@click.option("--minutes", type=FiniteRange(0, min_open=True), help="Propose samples that fit this time; estimates.")
@click.option(
    "--width",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    help="Propose samples at which no 95 % interval of a rate is wider, e.g. 0.05; estimates.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON; docs/json.md lists the fields.")
def check(
    *, path: Path, queries: int, estimate: bool, minutes: float | None, width: float | None, as_json: bool
) -> None:
    """Validate params, data, model, and that every assessment can run on them. Exit code 2 if not.

    A model that `train` has yet to make is checked as it will be: untrained, of the same shape.

    \b
    Examples:
      windtunnel check
      windtunnel check --params experiments/wide.yaml
      windtunnel check --estimate
      windtunnel check --minutes 30 --width 0.05
    """  # noqa: D301
    checked = partial(_check, path, queries, estimate=estimate, minutes=minutes, width=width)
    if as_json:
        _as_json(path, checked)
        return
    mistakes, _, _ = run_watched(checked)
    if mistakes:
        raise UserError("\n".join(mistakes))


def _as_json(path: Path, checked: Callable[..., Checked]) -> None:
    """Print the answer on stdout; exit with code 2 where there is a mistake."""
    from windtunnel.reporting.answers import CheckAnswer

    try:
        # What a model of the user's prints is no part of the answer.
        mistakes, look, needs = run_watched(checked, quiet=True)
        number = sum(1 for _ in entries(load_params(path)))
    except UserError as error:
        number, mistakes, look, needs = 0, str(error).splitlines(), None, None
    click.echo(CheckAnswer(ok=not mistakes, assessments=number, mistakes=mistakes, seen=look, needs=needs).text())
    if mistakes:
        raise SystemExit(USER_ERROR)


def _check(
    path: Path, queries: int, *, estimate: bool, minutes: float | None, width: float | None, quiet: bool = False
) -> Checked:
    """In a process of its own, so that a model which hangs, or ends its process, cannot pass for one that was checked."""
    if quiet:
        os.dup2(2, 1)  # stdout becomes stderr
    console = Console(quiet=quiet)
    require_whole_files()
    raw = read_params(path)
    params = validate(raw, str(path))
    check_whole(path, raw)
    console.print(
        f"{OK} {path}: {sum(1 for _ in entries(params))} assessments, budget "
        f"{place_text(params.budget.norm, params.budget.epsilon)}"
    )
    from windtunnel.cli.compatibility import Measurement, check_compatibility

    measurement = Measurement(estimate or minutes is not None or width is not None, minutes, width)
    mistakes, look, needs = check_compatibility(params, console, queries, measurement)
    mistakes += missing_references(Path(GRAPH), raw) if path == PARAMS_FILE else []
    if not mistakes:
        console.print(f"{OK} every assessment fits the model and the data")
    if look and look.proposal:
        console.print("\nThe samples say that params.yaml should have:")
        console.print("\n".join(look.proposal), markup=False, highlight=False, soft_wrap=True)
    return mistakes, look, needs
