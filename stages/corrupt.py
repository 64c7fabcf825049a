"""Stage `corrupt@<name>`: one entry of `corruptions`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("corrupt")
