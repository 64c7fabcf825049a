"""Stage `latent@<name>`: one entry of `latent`."""

from windtunnel.operations.stages.run import main

if __name__ == "__main__":
    main("latent")
