"""Stage `attack@<name>`: one entry of `attacks`, on what other attacks left where it says so."""

from __future__ import annotations

from windtunnel.assessments.run import stage_main

if __name__ == "__main__":
    stage_main("attacks")
