"""`prepare` runs again where the transforms of a model's library change, and not for its new weights."""

import json
from pathlib import Path

import pytest

from windtunnel.boundary.models.views import view_of
from windtunnel.operations.resolve import dependencies
from windtunnel.params.model import Model


def test_only_what_decides_the_view_is_of_prepare(tmp_path):
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_text(json.dumps({}))
    model = Model(source="huggingface", path=str(tmp_path), sha256="ab", time_limit=9)
    assert {Path(path).name for path in dependencies.view_files(model).values()} == {
        "config.json",
        "preprocessor_config.json",
    }
    assert dependencies.view_model(model) == Model(source="huggingface", path=str(tmp_path))
    assert "windtunnel.boundary.models.huggingface.adapter" in set(dependencies.view_code(model))


def test_a_checkpoint_does_not_decide_the_view_of_a_named_architecture():
    first, second = (Model(source="torchvision", name="resnet18", path=f"{name}.pt") for name in ("a", "b"))
    assert dependencies.view_model(first) == dependencies.view_model(second)
    assert not dependencies.view_files(first)
    assert dependencies.view_model(first) != dependencies.view_model(Model(source="torchvision", name="resnet50"))


@pytest.mark.parametrize("source", ["train", "state_dict", "onnx", "function"])
def test_a_model_of_no_library_has_no_view(source):
    assert dependencies.view_model(Model(source=source)) is None
    assert view_of(Model(source=source)) is None
    assert not list(dependencies.view_code(Model(source=source)))


def test_every_source_with_a_record_may_be_named():
    assert {"torchvision", "timm", "huggingface"} <= set(Model.model_json_schema()["properties"]["source"]["enum"])
