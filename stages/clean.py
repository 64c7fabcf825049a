"""Stage `clean`: the model without any perturbation."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("clean")
