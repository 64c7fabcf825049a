"""Stage `generators`: train the generative models, or import the user's, and measure their quality."""

from windtunnel.boundary.data.load import read_assessed, read_train
from windtunnel.boundary.generators.load import generators_in, load_generators, make_generators
from windtunnel.boundary.generators.quality import QUALITY_JSON, Quality, quality
from windtunnel.boundary.models.load import pick_device
from windtunnel.core.dataset import Dataset
from windtunnel.params.latent import Generators
from windtunnel.params.resolved import read_resolved
from windtunnel.records.files import write_json
from windtunnel.records.layout import DATA, HERE, Layout


def main() -> None:
    """Write reports/generators; with `generators.source: none` only that there is nothing."""
    resolved = read_resolved("generators")
    block = generators_in(resolved.work.entry["generators"])
    write_generators(block, read_assessed(DATA), read_train(DATA), resolved.seed, resolved.work.device, HERE)


def write_generators(
    block: Generators, assessed: Dataset, train: Dataset | None, seed: int, device: str, layout: Layout
) -> None:
    """Make the generative models of the training split, and measure them on it."""
    make_generators(block, train, seed, device, layout.generators)
    where = pick_device(device)
    generators = load_generators(layout.generators, where, assessed, block)
    generator_quality = quality(generators, train, seed, where) if generators else Quality()
    write_json(generator_quality.model_dump(mode="json"), layout.generators / QUALITY_JSON)
