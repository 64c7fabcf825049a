"""The command line, also where its script is not on the path (`python -m windtunnel`), and the stages of a project."""

import sys

from windtunnel.runtime.missing_package import importing


def main() -> None:
    """Entry point of the `windtunnel` command."""
    with importing():
        from windtunnel.cli.main import main as run

        run()


if __name__ == "__main__":  # and not where a process that a stage starts imports this module too
    if sys.argv[1:2] == ["stage"] and not any(word.startswith("-") for word in sys.argv[2:]):
        with importing():
            # Without the command line around it: a stage executes only what was resolved for it.
            from windtunnel.operations.stages.run import main as run

            del sys.argv[1]
            run()
    else:
        main()
