"""Names for plug-ins: records to register, and the types of the arguments of their functions (docs/architecture.md has examples).

plugins.pyi lists them.
"""

from windtunnel.records.public_names import imported, listed_names

_NAMES = listed_names(__name__)
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for: a record is read by commands that should not wait for torch."""
    return imported(__name__, name, _NAMES)
