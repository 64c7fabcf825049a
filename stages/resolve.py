"""Stage `resolve`: write what decides each stage's result, and only what changed."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("resolve")
