"""Addresses as they may be shown, logged and kept: without the name and the password that may stand in them."""

from __future__ import annotations

import os
import re

# Of whoever asks MLflow; a client's error text may repeat them.
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_SHORTEST = 4  # characters; a shorter one would be found in words that have nothing to do with it
# name:password@ before a host, which has no slash; a password may hold an @ itself.
_IN_FRONT = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s\"'<>]*@")
_IN_QUERY = re.compile(
    r"(?i)([?&;](?:[a-z_.-]*(?:password|passwd|pwd|token|secret|signature)|api_?key|access_?key|sig)=)[^&;\s\"'<>]+"
)


def reason_of(error: BaseException, at_most: int = 200) -> str:
    """What a server, or a client of one, says in an error: one line, cut only when its credentials are out."""
    return " ".join(without_credentials(str(error)).split())[:at_most]


def without_credentials(text: str) -> str:
    """`text` with the credentials of every address in it taken out, and those of the environment wherever they stand."""
    text = _IN_QUERY.sub(r"\1***", _IN_FRONT.sub(r"\1", text))
    for name in _SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST:
            text = text.replace(value, "***")
    return text
