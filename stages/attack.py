"""Stage `attack@<name>`: one entry of `attacks`, on what other attacks left where it says so."""

from __future__ import annotations

import sys
import time

from windtunnel.attacks.assess import assess
from windtunnel.attacks.survivors import read_prior
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.load import load_params
from windtunnel.workspace import ROBUSTNESS, finish, prepare_entry, user_errors


def main(name: str) -> None:
    """Run the attack `name`."""
    started = time.time()
    params = load_params()
    entry, subject = prepare_entry(params, "attacks", name)
    assert isinstance(entry, AttackEntry)
    prior = read_prior(f"attacks.{name}", entry, ROBUSTNESS, params.attacks, params.budget)
    result = assess(name, entry, params.budget, subject, prior)
    finish(params, "attacks", result, subject, started)


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
