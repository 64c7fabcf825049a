"""Corrupt an image by a function of the user's: `(image, severity, seed) -> image`."""

from windtunnel.assessments.corruptions.rows import CorruptionRequest
from windtunnel.core.references import resolve


def corrupt(request: CorruptionRequest) -> object:
    """Return the function's result, unchecked."""
    return resolve(request.corruption, "corruptions.algorithm")(request.image, request.severity, request.seed)
