"""Stage `attack@<name>`: one entry of `attacks`."""

from __future__ import annotations

from windtunnel.workspace import stage_main

if __name__ == "__main__":
    stage_main("attacks")
