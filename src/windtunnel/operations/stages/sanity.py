"""Stage `sanity`: whether the numbers of the assessments should be believed."""

import time
from dataclasses import replace

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.boundary.data.load import read_train
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.params import load_params
from windtunnel.core.dataset import Dataset
from windtunnel.core.seeds import seeded
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.assess import assess
from windtunnel.evaluation.sanity.cost import cost_of_checks
from windtunnel.evaluation.sanity.evidence import Evidence, collect
from windtunnel.evaluation.sanity.witness import attack_passes
from windtunnel.params.resolved import read_resolved
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts, read_artifacts, write_artifacts
from windtunnel.records.layout import DATA, HERE, Layout
from windtunnel.records.storage import keep_images


def announced_cost(evidence: Evidence) -> str:
    """Return in words what the checks will cost, before they run; empty for the profile `stored`."""
    settings, subject = evidence.params.sanity, evidence.subject
    if settings.profile == "stored":
        return ""
    if isinstance(subject.classifier.module, PredictFunction):
        return f"at most {settings.queries} queries of the model, half of them for the witness (sanity.queries)"
    certified = sum(len(a.indices) for a in evidence.assessments if a.family == "verification")
    passes = attack_passes(evidence)
    with seeded(subject.seed):  # a random model's draws in the checks stay the same
        cost = cost_of_checks(settings, subject.classifier, subject.dataset, certified, attack_passes=passes)
    extra = "; attacks of the profile full come on top" if settings.profile == "full" else ""
    return f"{cost}{extra}"


def main() -> None:
    """Read every assessment that params.yaml names, and write reports/sanity."""
    started, params = time.time(), load_params()
    subject = replace(
        current_subject(params.device, params.seed, params.model), resolved=read_resolved("sanity").digest
    )
    write_sanity(params, subject, HERE, started, read_train(DATA), log=True)


def write_sanity(
    params: Params, subject: Subject, layout: Layout, started: float, train: Dataset | None, *, log: bool = False
) -> Artifacts:
    """Check what lies in `layout`. `train`: the training split, where it is known. log: print first what the checks will cost."""
    evidence = collect(params, subject, read_artifacts(layout.clean), layout.robustness, train)
    if log and (cost := announced_cost(evidence)):
        print(f"sanity: {cost}", flush=True)
    result = keep_images(assess(evidence, params.sanity), params.storage.inputs)
    return write_artifacts(result, layout.sanity, evidence.subject, started=started)
