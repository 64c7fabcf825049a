"""A sanity check of a plug-in."""

from windtunnel.plugins import CheckResult, Severity, Tier, check


@check(
    "X1",
    "Random signs break no more than a gradient does",
    Tier.STORED,
    Severity.WARN,
    source="tests/plugin",
    remedy="Look at the gradient attacks",
)
def random_signs(evidence, threshold):
    """A random corner of the ball should not beat a gradient: where it does, gradients are masked."""
    rates = {a.name: float(a.artifacts.metrics["attack_success_rate"]) for a in evidence.of("attacks")}
    return CheckResult(rates["signs"] > rates["fgsm"] + threshold, rates["signs"] - rates["fgsm"], n=len(rates))
