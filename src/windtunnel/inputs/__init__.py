"""Former name of `windtunnel.boundary`, which older params.yaml files and modules of users refer to."""

from windtunnel import boundary

__path__ = boundary.__path__
