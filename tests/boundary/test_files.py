"""Files from outside are regular and bounded, or refused in one line."""

import gzip
import os
import threading

import pytest

from windtunnel.boundary.files import read_bytes, read_text
from windtunnel.core.errors import UserError


def refused(read) -> str:
    with pytest.raises(UserError) as error:
        read()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device", "missing", "below a file"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "given"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "device":
            path = path.__class__("/dev/zero")
        case "below a file":
            path.write_text("x")
            path = path / "inner"
    lines = []
    thread = threading.Thread(
        target=lambda: lines.append(refused(lambda: read_bytes(path, where="data.path"))), daemon=True
    )
    thread.start()
    thread.join(5)
    assert lines
    assert lines[0].startswith(f"data.path: {path}")


def test_a_size_is_limited_before_and_after_unpacking(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(b"x" * 101)
    packed.write_bytes(gzip.compress(b"x" * 2**24))
    assert "101 bytes; 100 at most" in refused(lambda: read_bytes(plain, max_bytes=100))
    assert "more than 100000 bytes" in refused(lambda: read_bytes(packed, max_bytes=100_000, gunzip=True))
    packed.write_bytes(gzip.compress(b"text")[:-6])
    assert "cannot be read" in refused(lambda: read_bytes(packed, gunzip=True))


def test_links_are_followed(tmp_path):
    outside, folder = tmp_path / "outside.txt", tmp_path / "model"
    folder.mkdir()
    outside.write_text("secret")
    (folder / "link.txt").symlink_to(outside)
    assert read_text(folder / "link.txt") == "secret"


def test_text_is_utf8_with_or_without_a_mark(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.yaml")
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_text(path) == "a: 1"
    path.write_bytes(b"\xff\xfe")
    line = refused(lambda: read_text(path))
    assert "no text in UTF-8" in line
    assert line.encode("utf-8")
