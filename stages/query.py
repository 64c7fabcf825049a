"""Stage `query@<name>`: one entry of `queries`."""

from __future__ import annotations

from windtunnel.assessments.run import stage_main

if __name__ == "__main__":
    stage_main("queries")
