"""Stage `generators`: train the generative models, or import the user's, and say how good they are."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("generators")
