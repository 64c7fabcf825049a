"""Sign an evidence pack with an OpenSSH key, as `ssh-keygen -Y sign -n windtunnel-evidence` does.

Keys of OpenSSH need no service and no account, people and CI have them, `ssh-keygen -Y verify` checks the signature
without Python, and `cryptography` (already installed for MLflow) does the cryptography. `model-signing` brings sigstore and an
identity provider, and signs models, not packs of files.
"""

from __future__ import annotations

import base64
import textwrap
from pathlib import Path

from windtunnel.boundary.files import open_file
from windtunnel.core.errors import UserError
from windtunnel.operations.evidence.verify import MOST, NAMESPACE, signed_bytes


def sign(content: bytes, key: Path) -> bytes:
    """Return the SSH signature of `content` by the private Ed25519 key in the file `key`.

    Raises:
        UserError: `key` is missing, has a passphrase, or is no Ed25519 key.

    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        with open_file(key, where="--sign") as file:
            private = serialization.load_ssh_private_key(file.read(MOST), None)
    except TypeError as error:  # of an encrypted key; ssh-keygen takes the passphrase from a terminal or an agent
        command = f"ssh-keygen -Y sign -n {NAMESPACE.decode()} -f {key} digests.json"
        raise UserError(f"--sign: {key}: has a passphrase; unpack the pack and sign by: {command}") from error
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"--sign: {key}: {reason}; ssh-keygen -t ed25519 -f FILE makes a key") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"--sign: {key}: no Ed25519 key; ssh-keygen -t ed25519 -f FILE makes one")
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )  # `ssh-ed25519 BASE64`
    signature = _string(b"ssh-ed25519") + _string(private.sign(signed_bytes(content)))
    parts = (base64.b64decode(public.split()[1]), NAMESPACE, b"", b"sha512", signature)
    blob = b"SSHSIG" + (1).to_bytes(4, "big") + b"".join(map(_string, parts))
    lines = "\n".join(textwrap.wrap(base64.b64encode(blob).decode(), 70))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n".encode()


def _string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
