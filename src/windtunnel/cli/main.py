"""The command line: `windtunnel --help`."""

import importlib
import importlib.util
import io
import os
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import click

from windtunnel.core.errors import shown
from windtunnel.core.threads import compute_with_one_thread
from windtunnel.runtime.missing_package import not_installed
from windtunnel.runtime.own_source import require_own_source
from windtunnel.runtime.shutdown import handle_signals, user_errors

# name: one-line help. The module of a command is imported when it is called, so that `windtunnel --help` does not wait for torch.
COMMANDS = {
    "init": "set up an assessment in a folder of any git repository",
    "upgrade": "bring an older project's params.yaml and dvc.yaml up to date",
    "doctor": "what is installed, what is missing, what each would enable, and how to get it",
    "check": "validate params, data, model and every assessment before anything is computed",
    "repro": "run what changed, as `dvc repro` does, several stages at once",
    "status": "what `dvc repro` would run, why, and how long that took before",
    "params": "the schema of params.yaml, or the effective values",
    "algorithms": "the catalogue of algorithms",
    "stage": "run one stage of the pipeline, without DVC",
    "show": "the results of the last run",
    "report": "build the PDF and the HTML from the artifacts",
    "sanity": "are these numbers valid?",
    "verify": "decide one VNN-LIB instance, or audit a verification of the last run",
    "vnnlib": "write every sample of a verification as a VNN-LIB instance",
    "strengthen": "stronger attacks for flagged sanity checks, run on the surviving samples",
    "gate": "the gate's decision as an exit code",
    "track": "log to MLflow what is not logged yet",
    "champion": "who is champion, challenger and previous in the model registry",
    "promote": "make the model of the last run the champion, if it passes the gate",
    "rollback": "make the champion before this one champion again",
    "retrain": "run what changed and promote the model if it is not worse than the champion",
    "sweep": "the same assessment at several budgets, side by side",
    "view": "every sample of one run or several, in the browser",
    "evidence": "the last run in one zip file, with digests, for an auditor",
    "compare": "compare two runs or more: differences, paired on the same samples, and flipped samples",
    "repair": "repair DVC's files after a kill",
    "ui": "open the MLflow UI on the right store",
}
# The module of a command in windtunnel.cli, where it is not one of the command's own name.
MODULES = {
    **dict.fromkeys(("algorithms", "params"), "catalogue"),
    **dict.fromkeys(("init", "upgrade"), "project"),
    **dict.fromkeys(("repro", "status", "repair", "stage"), "pipeline"),
    **dict.fromkeys(("compare", "view", "sweep"), "runs"),
    **dict.fromkeys(("track", "ui", "retrain", "champion", "promote", "rollback"), "tracking"),
    "evidence": "report",
    "strengthen": "sanity",
    "vnnlib": "verify",
}
# Modules of the extra `pipeline` without which a command can do nothing; refused before it begins.
_NEEDS = {
    **dict.fromkeys(("repro", "status", "repair"), ("dvc",)),
    **dict.fromkeys(("track", "champion", "promote", "rollback", "ui"), ("mlflow",)),
    **dict.fromkeys(("retrain", "sweep"), ("dvc", "mlflow")),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"windtunnel.cli.{MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, with the nearest match in the error; what it needs is installed, but for its help."""
        from windtunnel.core.errors import nearest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], COMMANDS)
            hint = f" Did you mean '{near}'?" if near else ""
            raise click.UsageError(f"'{args[0]}' is not a command.{hint} See windtunnel --help")
        for package in _NEEDS.get(args[0], ()) if args and not {"-h", "--help"} & {*args} else ():
            if importlib.util.find_spec(package) is None:
                raise not_installed(package)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an empty one, as an unset variable of a shell leaves it, and control characters are refused."""
        for argument in args:
            if not argument:
                raise click.UsageError("an argument is empty (''); leave it out, or give it a value")
            if any(unicodedata.category(character) == "Cc" for character in argument):
                raise click.UsageError(
                    f"the argument {shown(argument)} holds a line break or another control character"
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; what goes wrong in it is one line on stderr and an exit code."""
        with user_errors():
            require_own_source()
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="windtunnel")
def cli() -> None:
    """Robustness assessment of image classifiers: attacks, verification, corruptions, and checks of the results.

    \b
    Examples:
      windtunnel check                      is params.yaml fit to run?
      dvc repro                             run what changed
      windtunnel show                       the results in the terminal
      windtunnel algorithms --norm L2       what can be used under L2
    """  # noqa: D301  \b is click's mark for text that keeps its lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `windtunnel` command."""
    handle_signals()
    importlib.import_module("windtunnel.boundary.limits")  # limits imports of users' code
    compute_with_one_thread()
    for stream in (sys.stdout, sys.stderr):  # names of files may be in any encoding
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    programs, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if programs not in path.split(os.pathsep):  # as where cron calls the command: stages run its `python`
        os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
    sys.path.append(str(Path.cwd()))  # pipeline/ belongs to the project in the current directory, as stages/ do
    try:
        code = cli(list(arguments) if arguments is not None else None, "windtunnel", standalone_mode=False)
    except click.ClickException as error:  # a mistake in the command line; click would take three lines for it
        where = getattr(error, "ctx", None)
        hint = f"; {where.command_path} --help" if where is not None else ""
        click.echo(f"windtunnel: {' '.join(error.format_message().split())}{hint}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("\nwindtunnel: nobody answered the question; --yes answers it", err=True)
        sys.exit(1)
    except BrokenPipeError:  # a reader such as `head` has left
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
