"""`windtunnel doctor`: what this installation has and lacks, and how to get it."""

import shutil
from collections.abc import Sequence

import click

from windtunnel.cli.output import headings, print_table, table_console
from windtunnel.core.errors import UserError
from windtunnel.operations import doctor as installation

_COLUMNS = headings("package", "version", "enables", "to get it", typed=("package", "to get it"))
_CORE = ("torch", "onnxruntime")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--install", is_flag=True, help="Install what is missing, or the packages NAME.")
@click.option("--yes", is_flag=True, help="Ask nothing.")
def doctor(*, names: tuple[str, ...], install: bool, yes: bool) -> None:
    """Show what is installed, in which version, what is missing, and what each would enable. Exit code 2 where it cannot work.

    torchattacks and auto-LiRPA declare versions that no resolver can satisfy; --install shows the exact commands that bring them all
    the same, and why, and runs them.

    \b
    Examples:
      windtunnel doctor
      windtunnel doctor --install
      windtunnel doctor --install auto-LiRPA --yes
    """  # noqa: D301
    if install:
        install_packages(names, yes=yes)
        return
    if names or yes:
        raise click.UsageError("NAME and --yes go with --install")
    click.echo(f"{installation.PACKAGE} {installation.installed(installation.PACKAGE)}, {installation.machine()}")
    needed = [(name, installation.installed(name) or "missing", "needed", "") for name in _CORE]
    git = ("git", "found" if shutil.which("git") else "missing", "needed", "")
    rows = [_row(companion) for companion in installation.companions()]
    print_table(table_console(), _COLUMNS, [("", [*needed, git]), ("", rows)])
    mistakes = [f"doctor: {line} is needed; pip install '{line}'" for line in installation.lacking()]
    mistakes += [] if shutil.which("git") else ["doctor: git is needed; DVC keeps its results beside a git repository"]
    if mistakes:
        raise UserError("\n".join(mistakes))
    for reason in filter(None, (installation.other_build(), installation.untested())):
        click.echo(f"! {reason}")
    if missing := installation.chosen(()):
        click.echo(f"Everything works but what needs {', '.join(c.name for c in missing)}: windtunnel doctor --install")


def _row(companion: installation.Companion) -> tuple[str, str, str, str]:
    if companion.fits:
        return companion.name, str(companion.version), companion.install.enables, ""
    if not companion.has_wheel:
        return companion.name, "no build for this Python", companion.install.enables, ""
    version = f"{companion.version}, unfit" if companion.version else "missing"
    return companion.name, version, companion.install.enables, f"windtunnel doctor --install {companion.name}"


def install_packages(names: Sequence[str], *, yes: bool) -> None:
    """Show the commands, ask, and run them."""
    todo = installation.steps(installation.chosen(names))
    if not todo:
        click.echo("doctor: nothing to install")
        return
    for step in todo:
        click.echo(f"{installation.shown(step.command)}\n    {step.why}")
    if not yes and not click.confirm("Run it?", default=True):
        return
    for step in todo:
        installation.run(step)
    click.echo(f"doctor: installed {', '.join(c.name for c in installation.companions() if c.fits)}")
