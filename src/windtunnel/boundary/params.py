"""Read and validate params.yaml."""

from pathlib import Path

from windtunnel.boundary.files import path_text
from windtunnel.boundary.params_file import read_params
from windtunnel.params.load import validate_schema
from windtunnel.params.schema import Params
from windtunnel.records.layout import PARAMS_FILE


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and validate params.yaml; names used twice or not there are refused too.

    What only the registries know (algorithms, visualisers, metrics, checks) is checked by `evaluation.validate`.

    Raises:
        UserError: with a line per mistake.
    """
    return validate_schema(read_params(path), path_text(path))
