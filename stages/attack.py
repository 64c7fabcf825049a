"""Stage `attack@<name>`: one entry of `attacks`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("attack")
