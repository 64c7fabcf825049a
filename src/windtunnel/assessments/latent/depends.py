"""Dependencies of an entry of `latent` beyond the imports of its stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.assessments.depends import Depends, code_of_others, other_models, remote
from windtunnel.params.latent import LatentEntry

if TYPE_CHECKING:
    from windtunnel.params.schema import Params


def _options(entry: LatentEntry, params: Params) -> frozenset[str]:
    return remote(entry.models)


def _files(entry: LatentEntry) -> dict[str, str]:
    return other_models({f"models[{i}]": directory for i, directory in enumerate(entry.models)})


DEPENDS = Depends(
    _options, own_budget=lambda entry: True, files=_files, code=lambda entry: code_of_others(entry.models)
)
