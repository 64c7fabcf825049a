"""windtunnel: robustness assessment of image classifiers as a DVC pipeline with MLflow tracking, or with one call.

The public names, which __init__.pyi lists; everything else may change between releases.
"""

from importlib import import_module

from windtunnel.records.public_names import imported, listed_names

_NAMES = listed_names(__name__)
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> object:
    """Import a public name at its first use: `windtunnel --help` must not wait for torch. Functions are behind the door."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    door = import_module("windtunnel.boundary.door")
    with door.one_line(f"{__name__}.{name}"):
        globals()[name] = value = door.public(imported(__name__, name, _NAMES))
    return value
