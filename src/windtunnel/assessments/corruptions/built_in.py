"""The corruptions that windtunnel implements."""

import numpy as np

from windtunnel.assessments.corruptions.camera import CAMERA
from windtunnel.assessments.corruptions.common_bar import COMMON_BAR
from windtunnel.assessments.corruptions.rows import CorruptionRequest

_FUNCTIONS = {**CAMERA, **COMMON_BAR}


def corrupt(request: CorruptionRequest) -> np.ndarray:
    """Corrupt an image; its pixels depend on the image, the severity and the seed alone."""
    function, strengths = _FUNCTIONS[request.corruption]
    changed = function(request.image / 255.0, strengths[request.severity - 1], np.random.default_rng(request.seed))
    pixels: np.ndarray = np.round(changed.clip(0, 1) * 255).astype(np.uint8)
    return pixels
