"""Keep libraries from the network while they load what is on this disk."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from windtunnel.core.errors import UserError

# Read by huggingface_hub and transformers when they are imported, and by timm through them.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


class NetworkRefusedError(UserError):
    """A connection that nothing in params.yaml asks for."""


@contextmanager
def no_network(what: str) -> Iterator[None]:
    """Refuse connections to other machines inside the block; sockets of this machine (AF_UNIX) stay.

    Raises NetworkRefusedError, in one line that begins with `what`, where code in the block looks up a host or connects.
    """
    refused: list[NetworkRefusedError] = []

    def refuse(host: object) -> NetworkRefusedError:
        refused.append(NetworkRefusedError(f"{what}: wants to connect to {str(host)[:100]}, which is not allowed"))
        return refused[-1]

    def lookup(host: object, *_: Any, **__: Any) -> Any:
        raise refuse(host)

    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            raise refuse(address[0])
        return plain_connect(self, address)

    plain_connect = socket.socket.connect
    with (
        mock.patch.dict(os.environ, _OFFLINE),
        mock.patch.object(socket, "getaddrinfo", lookup),
        mock.patch.object(socket.socket, "connect", connect),
    ):
        try:
            yield
        except Exception as error:
            if refused and not isinstance(error, UserError):  # a library made another error of it
                raise refused[0] from error
            raise
