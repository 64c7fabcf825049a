"""Group E, by recomputation: verdicts are checked by an implementation that did not reach them."""

from windtunnel.assessments.verification.audit import Audit, audit
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.agreement import balls
from windtunnel.evaluation.sanity.check import CheckResult, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable
from windtunnel.evaluation.summary.evidence import PerturbationBall

ASKED = 8  # verdicts of each verification that another implementation is asked for


def audited(
    subject: Subject, verification: Assessment, ball: PerturbationBall, certified: int, n_verdicts: int = ASKED
) -> Audit:
    """Return the audit of one verification of the run; subject: of all samples."""
    return audit(
        verification.artifacts, subject.subset(verification.indices), ball.norm, ball.epsilon, certified, n_verdicts
    )


@our_check("E15")
def certificates_stand(evidence: Evidence, limit: float) -> CheckResult:
    """A certificate is worth what somebody else finds when looking for its fault.

    At most `sanity.samples` certified samples of each verification are attacked in float64, each in the largest ball that is
    certified, at each other class in turn with restarts; eight verdicts are asked of an implementation that shares no bound with the
    one that reached them (branch and bound against auto-LiRPA and Marabou, and the other way round), with limited work. Any
    counter-example to a certificate, and any pair of opposite verdicts, flags. `windtunnel verify --audit NAME` does the same now,
    for more samples.
    """
    bad, ids, attacked, agreed, n_checked = list[str](), list[str](), 0, 0, 0
    for verification, ball in balls(evidence):
        audit = audited(evidence.subject, verification, ball, evidence.params.sanity.samples)
        attacked, agreed, n_checked = attacked + audit.attacked, agreed + audit.agreed, n_checked + audit.asked
        if audit.broken or audit.contradicted:
            bad.append(verification.name)
            ids += [*audit.broken, *audit.contradicted]
    if not attacked and not n_checked:
        raise NotApplicable("no verification decided anything")
    return CheckResult(
        bool(bad),
        len(set(ids)),
        n=attacked + n_checked,
        samples=sorted(set(ids)),
        assessments=bad,
        reason=f"{len(set(ids))} verdicts are contradicted",
        note=f"{attacked} certified samples attacked; {agreed} of {n_checked} verdicts confirmed by another implementation",
    )
