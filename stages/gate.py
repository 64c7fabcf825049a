"""Stage `gate`: the verdict on the conditions of `gate`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("gate")
