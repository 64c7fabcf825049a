# ruff: noqa: E402
"""Check an evidence pack: python verify.py [PACK] [--expect ROOT] [--key SIGNER.pub]; needs Python alone, a signature `cryptography`.

A pack can vouch for itself only as far as its sender can: without --expect or --key it is consistent, not anchored. The
modules that this file imports come from Python, never from the folder that it checks.
"""

import sys

if __name__ == "__main__":  # Python puts the folder of this file first, which is the folder that is checked
    del sys.path[: 0 if getattr(sys.flags, "safe_path", sys.flags.isolated) else 1]

import os

HERE = os.path.dirname(os.path.realpath(__file__))
if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != HERE]  # as PYTHONPATH=. would have it

import argparse
import base64
import hashlib
import io
import json
import stat
import zipfile
import zlib
from typing import IO, Any

MANIFEST, SIGNATURE, NAMESPACE = "digests.json", "digests.json.sig", b"windtunnel-evidence"
MOST = 2**26  # bytes of a manifest, a signature or a key
BUILTIN = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError, EOFError)
UNREADABLE = (
    *BUILTIN,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    ImportError,
    zlib.error,
)


def main(arguments: "list[str] | None" = None) -> int:
    """Print a line per difference; return 0 where every file is as packed and every anchor fits, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("pack", nargs="?", default=HERE, help="folder or zip; the folder of this file where absent")
    parser.add_argument(
        "--expect", metavar="ROOT", help="the root digest, as printed and logged when the pack was made"
    )
    parser.add_argument("--key", metavar="FILE", help="the public key of the signer, as `ssh-keygen` writes it")
    options = parser.parse_args(arguments)
    try:
        line, wrong = check(options.pack, options.expect, options.key)
    except UNREADABLE as error:
        text = " ".join(str(error).split())[:200] or "no reason given"
        line, wrong = "", [f"cannot be checked: {type(error).__name__}: {text}"]
    text = "\n".join(wrong) or line
    print(text.encode("ascii", "backslashreplace").decode())
    return int(bool(wrong))


def check(pack: str, expected_root: "str | None" = None, key: "str | None" = None) -> "tuple[str, list[str]]":
    """Return (the line of a pack that is as it was packed, the sorted differences)."""
    with PackFiles(pack) as files:
        wrong = [f"{what}: {name}" for what, name in files.refused]
        if MANIFEST not in files.names:
            return "", sorted([*wrong, f"missing: {MANIFEST}"])
        content = files.read(MANIFEST)
        root = hashlib.sha256(content).hexdigest()
        manifest = json.loads(content)
        expected = manifest["files"] if isinstance(manifest, dict) else None
        if not isinstance(expected, dict):
            raise ValueError(f"{MANIFEST} is no manifest")
        names: set[str] = set(files.names) - {MANIFEST, SIGNATURE}
        refused = {name for _, name in files.refused}
        wrong += [f"missing: {name}" for name in expected if name not in names and name not in refused]
        wrong += [f"not of the pack: {name}" for name in names if name not in expected]
        wrong += [f"changed: {name}" for name in names & expected.keys() if files.digest(name) != expected[name]]
        anchors = []
        if expected_root is not None:
            anchors.append("the expected root digest")
            if expected_root.strip().lower().removeprefix("sha256:") != root:
                wrong.append(f"changed: {MANIFEST}: its sha256 is {root}, expected was {expected_root[:100]}")
        if key is not None:
            anchors.append("the signature")
            if SIGNATURE not in files.names:
                wrong.append(f"missing: {SIGNATURE}")
            elif not is_signed(content, files.read(SIGNATURE), key):
                wrong.append(f"changed: {SIGNATURE}: is not a signature of {MANIFEST} by the key in {key}")
    anchored = f"anchored by {' and '.join(anchors)}" if anchors else "consistent, not anchored"
    return f"{len(expected)} files are as they were packed ({anchored}); root digest sha256:{root}", sorted(wrong)


class PackFiles:
    """The regular files of a folder or of a zip; `refused` has (reason, name) of everything else."""

    def __init__(self, pack: str) -> None:
        """Prepare to list `pack`, which may be a folder or a zip."""
        self.pack = pack
        self.names: dict[str, Any] = {}  # by name in the pack: a path, or an entry of the zip
        self.refused: list[tuple[str, str]] = []
        self.zip: zipfile.ZipFile | None = None

    def __enter__(self) -> "PackFiles":
        """List the files, following no link."""
        if os.path.isdir(self.pack):
            self._list(self.pack, "")
            return self
        if not stat.S_ISREG(os.stat(self.pack).st_mode):
            raise ValueError(f"{self.pack} is neither a folder nor a zip")
        self.zip = zipfile.ZipFile(self.pack)
        for entry in self.zip.infolist():
            if entry.filename in self.names:
                self.refused.append(("twice in the pack", entry.filename))
            elif stat.S_ISLNK(entry.external_attr >> 16):
                self.refused.append(("a link", entry.filename))
            elif not entry.is_dir():
                self.names[entry.filename] = entry
        return self

    def __exit__(self, *_: object) -> None:
        """Close the zip."""
        if self.zip:
            self.zip.close()

    def _list(self, folder: str, prefix: str) -> None:
        for entry in os.scandir(folder):
            name = prefix + entry.name
            if entry.is_symlink():
                self.refused.append(("a link", name))
            elif entry.is_dir(follow_symlinks=False):
                self._list(entry.path, f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                self.names[name] = entry.path
            else:
                self.refused.append(("no regular file", name))

    def open(self, name: str) -> "IO[bytes]":
        """Open a file for reading bytes."""
        return self.zip.open(self.names[name]) if self.zip else open(self.names[name], "rb")

    def digest(self, name: str) -> str:
        """Return the sha256 of a file; the reason where it cannot be read, which equals no digest."""
        digest = hashlib.sha256()
        try:
            with self.open(name) as file:
                while block := file.read(2**20):
                    digest.update(block)
        except (OSError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error) as error:
            return f"cannot be read: {error}"
        return digest.hexdigest()

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""
        with self.open(name) as file:
            content = file.read(MOST + 1)
        if len(content) > MOST:
            raise ValueError(f"{name} is larger than {MOST} bytes")
        return content


def is_signed(content: bytes, signature: bytes, key: str) -> bool:
    """Return True if `signature` is an SSH signature of `content` by the Ed25519 public key in the file `key`."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        with open(key, "rb") as file:
            public = load_ssh_public_key(file.read(MOST))
    except UnsupportedAlgorithm as error:
        raise ValueError(f"{key}: {error}") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ValueError(f"{key} is no Ed25519 key")
    armour = signature.split(b"-----")
    raw = io.BytesIO(base64.b64decode(armour[2]))
    if armour[1] != b"BEGIN SSH SIGNATURE" or raw.read(10) != b"SSHSIG\0\0\0\1":
        return False
    _signer, namespace, _reserved, algorithm, signed = (_string(raw) for _ in range(5))
    raw = io.BytesIO(signed)
    kind, signed = _string(raw), _string(raw)
    if (namespace, algorithm, kind) != (NAMESPACE, b"sha512", b"ssh-ed25519"):
        return False
    try:
        public.verify(signed, signed_bytes(content))
    except InvalidSignature:
        return False
    return True


def signed_bytes(content: bytes) -> bytes:
    """Return what an SSH signature of `content` is over (OpenSSH, PROTOCOL.sshsig)."""
    parts = (NAMESPACE, b"", b"sha512", hashlib.sha512(content).digest())
    return b"SSHSIG" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _string(raw: "IO[bytes]") -> bytes:
    return raw.read(min(int.from_bytes(raw.read(4), "big"), MOST))


if __name__ == "__main__":
    sys.exit(main())
