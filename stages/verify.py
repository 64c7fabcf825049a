"""Stage `verify@<name>`: one entry of `verification`, with the examples of attacks where it says so."""

from __future__ import annotations

from windtunnel.assessments.run import stage_main

if __name__ == "__main__":
    stage_main("verification")
