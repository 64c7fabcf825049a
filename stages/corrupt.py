"""Stage `corrupt@<name>`: one entry of `corruptions`, the suite and each corruption under it."""

from __future__ import annotations

from windtunnel.assessments.run import stage_main

if __name__ == "__main__":
    stage_main("corruptions")
