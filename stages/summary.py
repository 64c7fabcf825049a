"""Stage `summary`: the sandwich, the worst case per sample, and the headline metrics."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("summary")
