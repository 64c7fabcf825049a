"""An ONNX graph whose weights lie in a file beside it, as large models are saved: it works, and reads from nowhere else."""

import onnx
import pytest
import torch

from windtunnel.boundary.models.load import export_onnx, import_model, load_classifier, preview_classifier
from windtunnel.core.errors import UserError
from windtunnel.params.model import Model

MODEL = Model(source="onnx", path="w.onnx")


@pytest.fixture
def graph(tmp_path, monkeypatch, mlp_subject) -> onnx.ModelProto:
    monkeypatch.chdir(tmp_path)
    return onnx.load(export_onnx(mlp_subject.classifier, tmp_path / "whole.onnx"))


def save_beside(graph: onnx.ModelProto) -> None:
    onnx.save(graph, "w.onnx", save_as_external_data=True, location="w.data", size_threshold=0)


def points_at(graph: onnx.ModelProto, location: str) -> None:
    """The graph as a stranger edits it: its weights are said to be in another file."""
    save_beside(graph)
    edited = onnx.load("w.onnx", load_external_data=False)
    for tensor in edited.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(edited, "w.onnx")


def test_it_gives_the_logits_of_the_whole_one_also_where_the_files_are_gone(graph, tmp_path, mlp_subject):
    save_beside(graph)
    assert (tmp_path / "w.data").stat().st_size > (tmp_path / "w.onnx").stat().st_size
    import_model(MODEL, None, 0, "cpu", tmp_path / "kept")
    for name in ("w.onnx", "w.data"):
        (tmp_path / name).unlink()
    classifier = load_classifier(tmp_path / "kept", "cpu", mlp_subject.dataset)
    given, expected = classifier.logits(mlp_subject.dataset.inputs), mlp_subject.clean_logits
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def test_other_weights_beside_it_are_another_model(graph, tmp_path, mlp_subject):
    save_beside(graph)
    digests = []
    for kept in ("one", "two"):
        import_model(MODEL, None, 0, "cpu", tmp_path / kept)
        digests.append(load_classifier(tmp_path / kept, "cpu", mlp_subject.dataset).digest)
        content = bytearray((tmp_path / "w.data").read_bytes())
        content[3] ^= 1
        (tmp_path / "w.data").write_bytes(content)
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("location", "words"),
    [("gone.data", "gone.data"), ("../secret.data", "secret.data"), ("/etc/hostname", "hostname")],
)
def test_weights_that_are_missing_or_elsewhere_are_one_line(graph, tmp_path, mlp_subject, location, words):
    (tmp_path.parent / "secret.data").write_bytes(b"\0" * 100_000)
    points_at(graph, location)
    with pytest.raises(UserError) as caught:
        preview_classifier(MODEL, mlp_subject.dataset, None, "cpu")
    line = str(caught.value)
    assert line.startswith("model.path: w.onnx: the weights that it keeps in files beside it cannot be read")
    assert words in line
    assert "\n" not in line


def test_a_link_beside_it_leads_nowhere(graph, tmp_path, mlp_subject):
    """A link in an unpacked archive, to a file of the user's."""
    save_beside(graph)
    (tmp_path / "w.data").rename(tmp_path.parent / "private")
    (tmp_path / "w.data").symlink_to(tmp_path.parent / "private")
    with pytest.raises(UserError, match="cannot be read"):
        preview_classifier(MODEL, mlp_subject.dataset, None, "cpu")
