"""Images that were corrupted elsewhere and lie on disk."""

import numpy as np

from windtunnel.assessments.corruptions.rows import CorruptionRequest
from windtunnel.boundary.data.corrupted import corrupted_file
from windtunnel.boundary.data.sources import read_corrupted


def corrupt(request: CorruptionRequest) -> np.ndarray:
    """Return the image of the request's sample below `path`. Raises UserError where it is missing or of another size."""
    assert request.entry.path is not None
    file = corrupted_file(request.entry.path, request.corruption, request.severity, request.sample, request.class_name)
    return read_corrupted(file, request.image.shape, request.prepared)
