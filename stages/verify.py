"""Stage `verify@<name>`: one entry of `verification`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("verify")
