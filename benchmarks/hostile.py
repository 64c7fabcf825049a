"""How long all rows of the hostile tables take on two cores, and which of them fail.

    python -m benchmarks.hostile [--workers 2]

A test run takes a tenth of them (`tests/hostile/selection.py`). Wanted: at least 900 rows, none fails, at most 360 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

FILES = ("test_table.py", "test_api.py", "test_bad_plugins.py")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--durations", "10", "-p", "no:cacheprovider"]
    environment = {**os.environ, "WINDTUNNEL_HOSTILE": "all", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*command, *(f"tests/hostile/{name}" for name in FILES)], env=environment, check=False)
    print(f"{time.monotonic() - started:.0f} s with {workers} workers")
    raise SystemExit(ended.returncode)


if __name__ == "__main__":
    main()
