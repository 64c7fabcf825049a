"""Stage `latent@<name>`: one entry of `latent`, on the generative models of `generators`."""

from __future__ import annotations

import sys
import time
from typing import cast

from windtunnel.assessments.latent.assess import assess
from windtunnel.assessments.latent.models import load_models
from windtunnel.assessments.run import finish, prepare_entry
from windtunnel.core.contracts import Json
from windtunnel.core.endings import user_errors
from windtunnel.core.files import read_json
from windtunnel.core.layout import GENERATORS
from windtunnel.inputs.generators.load import load_generators
from windtunnel.params.latent import LatentEntry
from windtunnel.params.load import load_params


def main(name: str) -> None:
    """Run the entry `name` for this run's classifier and for its `models`."""
    started, params = time.time(), load_params()
    entry, subject = prepare_entry(params, "latent", name)
    assert isinstance(entry, LatentEntry)
    others = load_models(f"latent.{name}", entry, subject.dataset, params.device, params.tracking.uri)
    generators = load_generators(GENERATORS, subject.classifier.device, subject.dataset, params.generators)
    quality = cast(dict[str, Json], read_json(GENERATORS / "quality.json"))
    finish(params, "latent", assess(name, entry, subject, generators, quality, others), subject, started)


if __name__ == "__main__":
    with user_errors():
        main(sys.argv[1])
