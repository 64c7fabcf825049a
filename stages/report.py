"""Stage `report`: PDF, HTML and their content as data."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("report")
