"""The registry row of the latent family, and what an entry depends on beyond the imports of its stage."""

from windtunnel.assessments.depends import Depends, code_of_others, other_models, remote
from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Norm, Randomness, ThreatModel
from windtunnel.params.latent import LatentEntry

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


def results(entry: LatentEntry) -> int:
    """Return how many times over an entry keeps clean and perturbed images: reconstructed ones too, and generated ones like them."""
    return 2 * (1 + len(entry.decay_epsilon))


DEPENDS: Depends[LatentEntry] = Depends(
    lambda entry, params: remote(entry.models),
    own_budget=lambda entry: True,
    files=lambda entry: other_models({f"models[{i}]": model for i, model in enumerate(entry.models)}),
    code=lambda entry: code_of_others(entry.models),
)
