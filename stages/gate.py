"""Stage `gate`: the decision on the conditions of `gate`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("gate")
