"""Open files that come from outside: regular files of a bounded size, or one line that says why not.

A named pipe is never waited for, a device never read. Links are followed.
"""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from windtunnel.core.errors import UserError, shown

TEXT_BYTES = 2**20  # default limit of a text that people write
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def path_text(path: Path | str) -> str:
    """Return a path for a message: on one line, printable in any encoding, of bounded length."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 200 else shown(text)


def named(path: Path, where: str = "") -> str:
    """Return a path for a message, after the key or option `where` that names it."""
    return f"{where}: {path_text(path)}" if where else path_text(path)


def check_file(path: Path, *, where: str = "", max_bytes: int | None = None) -> Path:
    """Return `path` if it is a regular file that can be opened. Raises UserError as `open_file`."""
    open_file(path, where=where, max_bytes=max_bytes).close()
    return path


def open_file(path: Path, *, where: str = "", max_bytes: int | None = None, gunzip: bool = False) -> IO[bytes]:
    """Open a regular file for reading bytes.

    Args:
        path: the file; links are followed.
        where: the key or option that names it, for the message.
        max_bytes: the largest size, in bytes.
        gunzip: unpack a file whose name ends in `.gz`. What it unpacks to has no limit here: read a bounded number of bytes.

    Raises:
        UserError: in one line, for a missing file, another kind of file, or one that is too large or may not be read.
    """
    name = named(path, where)
    try:
        _require_regular(name, os.stat(path).st_mode)  # before it is opened: opening a device can have effects
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: {_reason(error)}") from error
    file = os.fdopen(descriptor, "rb")
    try:
        facts = os.fstat(descriptor)
        _require_regular(name, facts.st_mode)  # it may have been replaced
        if max_bytes is not None and facts.st_size > max_bytes:
            raise UserError(f"{name}: has {facts.st_size} bytes; {max_bytes} at most")
    except UserError:
        file.close()
        raise
    return gzip.open(file) if gunzip and path.suffix.lower() == ".gz" else file  # type: ignore[return-value]  # a GzipFile


def read_bytes(path: Path, *, where: str = "", max_bytes: int = TEXT_BYTES, gunzip: bool = False) -> bytes:
    """Read a regular file of at most `max_bytes`, counted after unpacking; see `open_file`. Raises UserError."""
    name = named(path, where)
    with open_file(path, where=where, max_bytes=max_bytes, gunzip=gunzip) as file:
        try:
            content = file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{name}: cannot be read ({_reason(error)})") from error
    if len(content) > max_bytes:
        raise UserError(f"{name}: holds more than {max_bytes} bytes")
    return content


def read_text(path: Path, *, where: str = "", max_bytes: int = TEXT_BYTES, gunzip: bool = False) -> str:
    """Read a text in UTF-8, with or without a byte order mark; see `read_bytes`. Raises UserError."""
    content = read_bytes(path, where=where, max_bytes=max_bytes, gunzip=gunzip)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = named(path, where)
        raise UserError(f"{name}: is no text in UTF-8 (byte {error.start} is {content[error.start]:#04x})") from error


def is_file(path: Path) -> bool:
    """Return True if `path` is a regular file; False for everything else, loops of links and odd names included."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def files_in(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Yield the entries of a folder that match, sorted by name; none where it cannot be listed."""
    try:
        yield from sorted(folder.glob(pattern), key=os.fsencode)
    except (OSError, ValueError):
        return


def _require_regular(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise UserError(f"{name}: is {_KINDS.get(stat.S_IFMT(mode), 'no file')}; a regular file is needed")


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0][:200].lower()
