"""Before a model is promoted, the checks that rerun attacks are made too, whatever the run's profile was."""

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.boundary.data.load import read_train
from windtunnel.evaluation.sanity.check import Status, Tier
from windtunnel.evaluation.sanity.evidence import collect
from windtunnel.evaluation.sanity.run import registry, run_checks
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.findings import read_sanity
from windtunnel.records.layout import CLEAN, DATA, ROBUSTNESS, SANITY


def failures_before_promotion(params: Params) -> list[str]:
    """Return a line per HARD failure of the profile full beyond the stored tensors; none where the run itself had that profile.

    `sanity.before_promotion: standard` leaves them out.
    """
    recorded = read_sanity(SANITY)
    if params.sanity.before_promotion != "full" or (recorded and recorded.profile == "full"):
        return []
    settings = params.sanity.model_copy(update={"profile": "full"})
    all_checks = params.model_copy(update={"sanity": settings})
    subject = current_subject(params.device, params.seed, params.model)
    evidence = collect(all_checks, subject, read_artifacts(CLEAN), ROBUSTNESS, read_train(DATA))
    check_ids = [name for name, row in registry().items() if row.tier is not Tier.STORED]
    return [
        f"sanity check {f.id} failed: {f.title} ({f.reason}). {f.remedy}"
        for f in run_checks(evidence, settings, check_ids)
        if f.status is Status.FAIL
    ]
