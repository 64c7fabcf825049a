"""Check an evidence pack: python verify.py, in the unpacked folder. Needs Python alone, and none of windtunnel."""

import hashlib
import json
import sys
from pathlib import Path


def main() -> int:
    """0 where every file is as it was packed; else 1, with a line for each that is not."""
    here = Path(__file__).resolve().parent
    expected = json.loads((here / "digests.json").read_text(encoding="utf-8"))["files"]
    found = {p.relative_to(here).as_posix(): p for p in here.rglob("*") if p.is_file() and p.name != "digests.json"}
    wrong = [f"missing: {name}" for name in expected if name not in found]
    wrong += [f"not of the pack: {name}" for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        if hashlib.sha256(found[name].read_bytes()).hexdigest() != expected[name]:
            wrong.append(f"changed: {name}")
    print("\n".join(sorted(wrong)) or f"{len(expected)} files are as they were packed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
