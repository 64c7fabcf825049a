"""The stages of dvc.yaml, a thin file each."""

from windtunnel.core.errors import user_errors
from windtunnel.core.own_source import require_own_source

# Here, since every stage passes here first: no stage may record numbers that other code made than the one DVC hashed.
with user_errors():
    require_own_source()
