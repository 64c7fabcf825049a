"""The command line, also where its script is not on the path (`python -m windtunnel`), and the stages of a project."""

import sys

from windtunnel.core.errors import USER_ERROR
from windtunnel.runtime.missing_package import missing_package


def main() -> None:
    """Entry point of the `windtunnel` command; a package without which it cannot begin is one line and an exit code."""
    argv = sys.argv[1:]
    try:
        if __name__ == "__main__" and argv[:1] == ["stage"] and not any(word.startswith("-") for word in argv[1:]):
            # Without the command line around it: a stage executes only what was resolved for it.
            from windtunnel.operations.stages.run import main as run_stage

            del sys.argv[1]
            run_stage()
        else:
            from windtunnel.cli.main import main as run_command

            run_command()
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        print(f"windtunnel: {missing}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":  # and not where a process that a stage starts imports this module too
    main()
