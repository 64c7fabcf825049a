"""Dependencies of an entry of `latent` beyond the imports of its stage."""

from windtunnel.assessments.depends import Depends, code_of_others, other_models, remote
from windtunnel.params.latent import LatentEntry

DEPENDS: Depends[LatentEntry] = Depends(
    lambda entry, params: remote(entry.models),
    own_budget=lambda entry: True,
    files=lambda entry: other_models({f"models[{i}]": model for i, model in enumerate(entry.models)}),
    code=lambda entry: code_of_others(entry.models),
)
