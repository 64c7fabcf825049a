"""`windtunnel init` and `windtunnel upgrade`: a robustness assessment in a folder of any git repository."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from windtunnel.boundary.discovery.weights import Weights
from windtunnel.boundary.files import path_text
from windtunnel.boundary.params_file import params_text as file_text
from windtunnel.boundary.text import parse_map
from windtunnel.cli.doctor import install_packages
from windtunnel.core.errors import UserError
from windtunnel.operations.doctor import PIPELINE
from windtunnel.operations.project.graph import graph_text
from windtunnel.operations.project.upgrade import plan_upgrade
from windtunnel.operations.project.write import GRAPH, PARAMS, Plan, apply, plan, removal, remove
from windtunnel.operations.resolve.status import pending_stages
from windtunnel.records.layout import CHAMPION, LOCK

if TYPE_CHECKING:
    from windtunnel.boundary.discovery.samples import SampleFiles
    from windtunnel.operations.project.choose import Choice, FolderContents

C = TypeVar("C", "SampleFiles", Weights)


@click.command()
@click.option("--folder", default="robustness", show_default=True, metavar="NAME", help="The folder to make here.")
@click.option(
    "--model",
    metavar="PATH|SOURCE:NAME",
    help="Weights, a torch.export program, an ONNX file, a folder of save_pretrained; or torchvision:resnet50, timm:..., huggingface:..., "
    "function:MODULE:NAME",
)
@click.option("--factory", metavar="MODULE:NAME", help="What builds the module that weights (a state dict) belong to.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="A folder of images by class, an idx file, an .npz, or an .npy beside its labels.",
)
@click.option("--store", metavar="URI", help="The MLflow store to log to; one in the folder where none is given.")
@click.option(
    "--ci", type=click.Choice(["github", "gitlab"]), help="Also write the workflow that assesses pull requests."
)
@click.option(
    "--yes",
    is_flag=True,
    help="Ask no questions: use what init finds, and create the git and DVC repositories if missing.",
)
@click.option(
    "--remove", "take_back", is_flag=True, help="Take back what init made and you left as it was, and results of runs."
)
def init(
    *,
    folder: str,
    model: str | None,
    factory: str | None,
    data: Path | None,
    store: str | None,
    ci: str | None,
    yes: bool,
    take_back: bool,
) -> None:
    """Set up an assessment in this repository: a folder with params.yaml and dvc.yaml of its own, and nothing outside of it.

    Looks for weights, data, DVC stages and an MLflow store, and shows what it would write before it does. Files that DVC
    stages here make become dependencies, so that retraining assesses again. A params.yaml that the folder holds already stays
    yours: init writes the other files beside it, and later brings dvc.yaml up to date with it.

    \b
    Examples:
      windtunnel init
      windtunnel init --yes --model models/net.pt --factory nets:Net --data data/test
      windtunnel init --yes --model torchvision:resnet50 --data photos
      windtunnel init --yes --model function:api:predict --data photos
      windtunnel init --ci github
      windtunnel init --remove
    """  # noqa: D301
    from windtunnel.operations.project.choose import FolderContents, notes, params_text

    if os.path.isabs(folder) or len(Path(folder).parts) != 1 or folder in {".", ".."}:
        raise UserError(f"init: --folder {folder}: the name of one folder to make here is needed")
    root = Path.cwd()
    if take_back:
        _remove(root / folder, yes=yes)
        return
    if missing := [companion.name for companion in PIPELINE if not companion.fits]:
        install_packages(missing, yes=yes)
    path = root / folder / PARAMS
    if not path.is_file():
        choice = _choose(FolderContents(root, Path(folder)), model, factory, data, store, yes=yes)
        params, todo = params_text(choice, Path("..")), notes(choice)
    elif model or factory or data or store:
        raise UserError(f"init: {folder}/{PARAMS} is there and yours; name model and data in it")
    else:
        params, todo = file_text(path), []
    _write(root, folder, params, ci, yes=yes)
    for line in todo:  # last, where it is read
        click.echo(f"to do, in {folder}/params.yaml: {line}")


def _choose(
    inputs: FolderContents, model: str | None, factory: str | None, data: Path | None, store: str | None, *, yes: bool
) -> Choice:
    from windtunnel.operations.project.choose import Choice

    if inputs.made:
        stages = list(dict.fromkeys(inputs.made.values()))
        click.echo(f"DVC stages here: {', '.join(stages[:20])}{', ...' if len(stages) > 20 else ''}")
    chosen = _model(inputs, model) if model else _pick("model", inputs.weights, yes=yes)
    fitting = inputs.factories(chosen) if chosen and not factory else []
    samples = inputs.data_at(data) if data else _pick("data", inputs.data, yes=yes)
    if inputs.store and store is None:
        click.echo(f"MLflow: mlflow.db is here; the assessment keeps a store of its own unless --store {inputs.store}")
        if not yes and click.confirm("Log to it?", default=False):
            store = inputs.store
    size = (chosen and chosen.side) or inputs.resize
    by_library = chosen is not None and chosen.of_library  # which resizes itself
    resized = samples is not None and samples.source == "folder" and samples.side != size and not by_library
    if chosen and fitting:
        click.echo(f"factory: {fitting[0]}, which {chosen.path} fits" + _others(fitting[1:]))
    name = factory or (fitting[0] if fitting else "")
    return Choice(chosen, samples, name, inputs.root.name, store or "", size if resized else None)


def _model(inputs: FolderContents, reference: str) -> Weights:
    chosen = inputs.model_at(reference)
    if chosen is None:
        raise UserError(
            f"init: --model {reference}: is no state dict that loads without running code, torch.export program, ONNX file, folder "
            f"of save_pretrained, name of a library's (torchvision:resnet50) or function (function:api:predict)"
        )
    return chosen


def _pick(what: str, candidates: Sequence[C], *, yes: bool) -> C | None:
    """Return the only candidate, or the one that the user chooses."""
    if not candidates:
        return None
    chosen = candidates[0]
    if len(candidates) > 1 and not yes:
        for number, candidate in enumerate(candidates, 1):
            click.echo(f"  {number}  {_described(candidate)}")
        chosen = candidates[click.prompt(f"Which {what}?", type=click.IntRange(1, len(candidates)), default=1) - 1]
    others = [str(candidate.path) for candidate in candidates if candidate is not chosen]
    click.echo(f"{what}: {_described(chosen)}{_others(others)}")
    return chosen


def _described(candidate: SampleFiles | Weights) -> str:
    fits = f", fits {candidate.name}" if isinstance(candidate, Weights) and candidate.name else ""
    origin = f", made by the DVC stage {candidate.made_by}" if candidate.made_by else ""
    return f"{candidate.path} ({candidate.source}{fits}{origin})"


def _others(names: Sequence[str]) -> str:
    return f"; also there: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}" if names else ""


def _write(root: Path, folder: str, params: str, ci: str | None, *, yes: bool) -> None:
    """Show the changes, confirm, and apply them."""
    project = plan(root / folder, params, graph_text(parse_map(params, f"{folder}/{PARAMS}")), ci)
    for name in project.kept:
        if name != PARAMS:
            click.echo(f"{folder}/{name} was changed by you and stays")
    changes = project.changes()
    if not changes and not project.makes:
        click.echo(f"init: {folder} is up to date")
        return
    _print_diff(project, Path(folder))
    for tool in project.makes:
        click.echo(f"and: {tool} init")
    if not yes and not click.confirm("Do this?", default=True):
        return
    apply(project, root)
    if ci == "gitlab" and not any(name.endswith(".gitlab-ci.yml") for name in project.files):
        click.echo(f"to do, in .gitlab-ci.yml: include: [{{local: /{folder}/ci/gitlab.yml}}]")
    where = f"{folder}/{GRAPH}"
    click.echo(f"init: {folder} is set up. Next: (cd {folder} && windtunnel check), then dvc repro {where}")


def _print_diff(project: Plan, folder: Path) -> None:
    for line in project.diff(folder):
        click.echo(click.style(line, fg={"+": "green", "-": "red", "@": "cyan"}.get(line[:1])))


def _remove(folder: Path, *, yes: bool) -> None:
    plan_of_removal = removal(folder)
    for path in (*plan_of_removal.own, *plan_of_removal.of_dvc):
        click.echo(f"remove {path_text(os.path.relpath(path))}")
    for name in plan_of_removal.changed:
        click.echo(f"keep {folder.name}/{name}, which was changed by you")
    for path in plan_of_removal.stays:
        click.echo(f"keep {path_text(os.path.relpath(path))}, which is yours")
    if yes or click.confirm("Remove it?", default=False):
        remove(plan_of_removal)
        click.echo(f"init: {folder.name} is taken back")


@click.command()
@click.option("--yes", is_flag=True, help="Ask nothing.")
def upgrade(*, yes: bool) -> None:
    """Rewrite params.yaml, and the files that `windtunnel init` wrote, as this version has them.

    Run it in the folder of params.yaml after an update of windtunnel. It shows the diff, asks, writes, and lists the stages
    that will be assessed again. A file that you have changed stays. Comments in params.yaml stay. docs/stability.md says what may
    change between versions.

    \b
    Examples:
      windtunnel upgrade
      windtunnel upgrade --yes && dvc repro
    """  # noqa: D301
    folder = Path.cwd()
    planned = plan_upgrade(folder)
    for line in planned.changes:
        click.echo(f"params.yaml: {line}")
    todo = (*planned.mistakes, *planned.unchanged)
    for line in todo:
        click.echo(f"to do: {line}", err=True)
    if planned.proposal.changes():
        click.echo("what this version would write in its place:")
        _print_diff(planned.proposal, Path())
    if planned.plan.changes():
        _print_diff(planned.plan, Path())
        if not yes and not click.confirm("Do this?", default=True):
            return
        apply(planned.plan, folder)
    else:
        click.echo("upgrade: nothing to write" if todo else "upgrade: the files are up to date")
    if not planned.mistakes:
        _list_pending()


def _list_pending() -> None:
    """Print which stages will run again, and whether the champion's outcomes were measured under the former protocol."""
    if find_spec("dvc") is None or not LOCK.is_file():
        click.echo("upgrade: nothing has run here yet")
        return
    pending = [stage for stage in pending_stages() if stage.why]
    for stage in pending:
        click.echo(f"{stage.stage}: {'drawn' if stage.redraws else 'computed'} again: {'; '.join(stage.why)}")
    if not pending:
        click.echo("upgrade: no result has to be computed again")
    assessed = any(not stage.redraws and ("@" in stage.stage or stage.stage == "clean") for stage in pending)
    if assessed and CHAMPION.is_file():
        click.echo(
            "the champion was assessed under the former settings; after dvc repro: windtunnel champion --reassess"
        )
