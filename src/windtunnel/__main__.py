"""`python -m windtunnel`: the command line where its script is not on the path, and the stages of a project."""

import sys

if __name__ == "__main__":  # and not where a process that a stage starts imports this module too
    if sys.argv[1:2] == ["stage"] and not any(word.startswith("-") for word in sys.argv[2:]):
        # Without the command line around it: a stage executes only what was resolved for it.
        from windtunnel.operations.stages.run import main as run

        del sys.argv[1]
        run()
    else:
        from windtunnel.cli.main import main

        main()
