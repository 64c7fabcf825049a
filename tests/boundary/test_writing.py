"""Outputs never replace an input or a file of the project, and never leave the folder that they belong in."""

import os

import pytest

from windtunnel.boundary.writing import check_output
from windtunnel.core.errors import UserError
from windtunnel.records.files import replacing


def test_a_file_of_another_kind_is_never_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "net.onnx", "notes.txt"):
        (tmp_path / name).write_text("mine")
    os.link(tmp_path / "net.onnx", tmp_path / "same.html")
    (tmp_path / "link.html").symlink_to("params.yaml")
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "dir.html").mkdir()
    (tmp_path / ".git").mkdir()
    names = [
        "params.yaml",
        "net.onnx",
        "same.html",
        "link.html",
        "pipe.html",
        "dir.html",
        "notes.txt",
        ".git/x.html",
        "notes.txt/x.html",
    ]
    for name in names:
        with pytest.raises(UserError) as error:
            check_output(tmp_path / name, where="--html", suffixes=(".html",), inputs=[tmp_path / "net.onnx"])
        assert "\n" not in str(error.value)
        assert name in str(error.value)


def test_a_result_is_written_whole_also_into_a_new_folder(tmp_path):
    path = tmp_path / "new" / "report.html"
    with replacing(check_output(path, where="--html", suffixes=(".html",))) as file:
        file.write_text("first")
    checked = check_output(path, where="--html", suffixes=(".html",))
    with pytest.raises(ZeroDivisionError), replacing(checked) as file:
        file.write_text(f"cut {1 / 0}")
    assert path.read_text() == "first"
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_a_linked_folder_does_not_lead_outside(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "repository"
    outside.mkdir()
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    with pytest.raises(UserError, match="leads out of"):
        check_output(folder / "link" / "a.yaml", where="init", inside=folder)
    assert not list(outside.iterdir())
