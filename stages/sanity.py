"""Stage `sanity`: whether the numbers of the assessments should be believed."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("sanity")
