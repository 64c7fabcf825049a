"""Stage `track`: log to MLflow what is not logged yet."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("track")
