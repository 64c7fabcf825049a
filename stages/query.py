"""Stage `query@<name>`: one entry of `queries`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("query")
