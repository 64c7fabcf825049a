"""Stage `generators`: train the generative models, or import the user's, and say how good they are."""

from __future__ import annotations

from windtunnel.core.endings import user_errors
from windtunnel.core.files import write_json
from windtunnel.core.layout import DATA, GENERATORS
from windtunnel.inputs.data.load import read_assessed, read_train
from windtunnel.inputs.generators.load import load_generators, make_generators
from windtunnel.inputs.generators.quality import quality
from windtunnel.inputs.models.load import pick_device
from windtunnel.params.load import load_params


def main() -> None:
    """Write reports/generators; with `generators.source: none` only that there is nothing."""
    params, train = load_params(), read_train(DATA)
    make_generators(params.generators, train, params.seed, params.device, GENERATORS)
    device = pick_device(params.device)
    generators = load_generators(GENERATORS, device, read_assessed(DATA), params.generators)
    facts = quality(generators, train, params.seed, device) if generators else {}
    write_json(facts, GENERATORS / "quality.json")


if __name__ == "__main__":
    with user_errors():
        main()
