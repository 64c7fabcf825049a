"""Stage `verify@<name>`: one entry of `verification`, with the examples of attacks where it says so."""

from __future__ import annotations

import sys
import time

from windtunnel.assessments.run import finish, prepare_entry
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.examples import read_examples
from windtunnel.core.endings import user_errors
from windtunnel.core.layout import ROBUSTNESS
from windtunnel.params.load import load_params
from windtunnel.params.verification import VerificationEntry


def main(name: str) -> None:
    """Run the verification `name`."""
    started = time.time()
    params = load_params()
    entry, subject = prepare_entry(params, "verification", name)
    assert isinstance(entry, VerificationEntry)
    results = read_examples(f"verification.{name}", entry.examples_from, ROBUSTNESS)
    finish(params, "verification", assess(name, entry, params.budget, subject, results), subject, started)


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
