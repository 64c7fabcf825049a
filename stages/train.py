"""Stage `train`: train the embedded default, or import the user's model."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("train")
