"""Stage `verify@<name>`: one entry of `verification`."""

from __future__ import annotations

from windtunnel.workspace import stage_main

if __name__ == "__main__":
    stage_main("verification")
