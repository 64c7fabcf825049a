"""The registry row of the latent family."""

from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Norm, Randomness, ThreatModel

LATENT_PGD = Algorithm(
    library="windtunnel",
    name="latent_pgd",
    kind=AssessmentKind.EMPIRICAL_ATTACK,
    threat_model=ThreatModel.WHITE_BOX,
    norm=Norm.LATENT_L2,
    categories=frozenset({"latent", "gradient"}),
    randomness=Randomness.SELF_SEEDED,
    requires=frozenset({Capability.FORWARD, Capability.AUTOGRAD}),
    minimum_norm=True,
    summary="PGD over latent codes of generative models, and the metrics LGA, LRA, LLNA, LLAR, LAGS, LARS, LAGA, LARA",
)
ALGORITHMS: tuple[Algorithm, ...] = (LATENT_PGD,)
