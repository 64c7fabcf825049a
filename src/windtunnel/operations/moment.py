"""The checks that are about this moment and not about the artifacts: asked when somebody looks, never cached."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable

from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity.check import Status


def committed() -> dict[str, Json]:
    """G6: whether git has everything that made the numbers; not run outside a repository."""
    done = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"status": Status.NOT_RUN, "reason": "this is no git repository"}
    changed = [line[3:] for line in done.stdout.splitlines()]
    if not changed:
        return {"status": Status.PASS, "reason": "", "value": 0}
    return {"status": Status.WARN, "reason": f"not committed: {', '.join(changed[:5])}", "value": len(changed)}


def tracked() -> dict[str, Json]:
    """G5: whether the metrics of this state's MLflow run are those of the files; not run where there is no such run."""
    from windtunnel.operations.tracking.look import logged_metrics
    from windtunnel.operations.tracking.state import read_state
    from windtunnel.params.load import load_params

    try:
        state = read_state()
        found = logged_metrics(state.digest, state.experiment, load_params().tracking.uri)
    except UserError as error:
        return {"status": Status.NOT_RUN, "reason": str(error)}
    if found is None:
        return {"status": Status.NOT_RUN, "reason": "this state is not tracked yet: windtunnel track"}
    wrong = [key for key, value in state.metrics.items() if not abs(found.get(key, math.nan) - value) <= 1e-9]
    if wrong:
        return {
            "status": Status.FAIL,
            "reason": f"other numbers in MLflow: {', '.join(wrong[:5])}",
            "value": len(wrong),
        }
    return {"status": Status.PASS, "reason": "", "value": 0}


def paired() -> dict[str, Json]:
    """F3: whether the champion can be paired with this run on every metric of `gate.maximum_regression`."""
    from windtunnel.core.layout import CHAMPION, SUMMARY
    from windtunnel.core.outcomes import OUTCOMES_FILE, read_record
    from windtunnel.evaluation.gate.decide import regression_mismatch
    from windtunnel.params.load import load_params

    if not CHAMPION.is_file():
        return {"status": Status.NOT_APPLICABLE, "reason": "there is no champion to compare with"}
    try:
        gate, mine = load_params().gate, read_record(SUMMARY / OUTCOMES_FILE)
        unpaired = regression_mismatch(gate, mine, read_record(CHAMPION))
    except UserError as error:
        return {"status": Status.NOT_RUN, "reason": str(error)}
    if unpaired:
        reason = f"the champion was assessed on other samples or settings: {', '.join(unpaired)}"
        return {"status": Status.WARN, "reason": reason, "value": len(unpaired)}
    return {"status": Status.PASS, "reason": "", "value": 0}


ASKED_NOW: dict[str, Callable[[], dict[str, Json]]] = {"F3": paired, "G5": tracked, "G6": committed}
