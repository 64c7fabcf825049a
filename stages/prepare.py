"""Stage `prepare`: load, convert, check and choose the samples."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("prepare")
