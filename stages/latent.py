"""Stage `latent@<name>`: one entry of `latent`, on the generative models of `generators`."""

from __future__ import annotations

from windtunnel.assessments.run import stage_main

if __name__ == "__main__":
    stage_main("latent")
