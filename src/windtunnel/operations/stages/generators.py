"""Stage `generators`: train the generative models, or import the user's, and say how good they are."""

from __future__ import annotations

from windtunnel.core.files import write_json
from windtunnel.core.layout import DATA, GENERATORS
from windtunnel.inputs.data.load import read_assessed, read_train
from windtunnel.inputs.generators.load import generators_in, load_generators, make_generators
from windtunnel.inputs.generators.quality import quality
from windtunnel.inputs.models.load import pick_device
from windtunnel.params.resolved import read_resolved


def main() -> None:
    """Write reports/generators; with `generators.source: none` only that there is nothing."""
    resolved, train = read_resolved("generators"), read_train(DATA)
    work = resolved.work
    block = generators_in(work.entry["generators"])
    make_generators(block, train, resolved.seed, work.device, GENERATORS)
    device = pick_device(work.device)
    generators = load_generators(GENERATORS, device, read_assessed(DATA), block)
    facts = quality(generators, train, resolved.seed, device) if generators else {}
    write_json(facts, GENERATORS / "quality.json")
