"""Stage `attack@<name>`: one entry of `attacks`, on what other attacks left where it says so."""

from __future__ import annotations

import sys
import time

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.survivors import read_prior
from windtunnel.assessments.run import finish, prepare_entry
from windtunnel.core.endings import user_errors
from windtunnel.core.layout import ROBUSTNESS
from windtunnel.inputs.models.others import named_classifier
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.load import load_params


def main(name: str) -> None:
    """Run the attack `name`."""
    started = time.time()
    params = load_params()
    entry, subject = prepare_entry(params, "attacks", name)
    assert isinstance(entry, AttackEntry)
    prior = read_prior(f"attacks.{name}", entry, ROBUSTNESS, params.attacks, params.budget)
    others = {
        key: named_classifier(
            f"attacks.{name}.transfer_to.{key}", place, subject.dataset, params.device, params.tracking.uri
        )
        for key, place in entry.transfer_to.items()
    }
    result = assess(name, entry, params.budget, subject, prior, others)
    finish(params, "attacks", result, subject, started)


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
