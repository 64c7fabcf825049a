"""Stage `sweep@<name>`: one entry of `sweeps`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("sweep")
