"""What `prepare`, `train` and `generators` write beside their tensors is read as the type that wrote it, or refused in one line."""

import json
import re

import pytest

from windtunnel.boundary.data.load import load_dataset, read_assessed, save_datasets
from windtunnel.boundary.data.record import read_record as read_dataset
from windtunnel.boundary.generators.load import TrainedGenerators, make_generators
from windtunnel.boundary.generators.load import read_record as read_generators
from windtunnel.boundary.generators.quality import read_quality
from windtunnel.boundary.models.load import import_model
from windtunnel.boundary.models.record import KINDS, Fetched, ModelRecord, Trained, read_model, write_model
from windtunnel.core.errors import UserError
from windtunnel.params.data import Data
from windtunnel.params.latent import GeneratorRecipe, Generators
from windtunnel.params.model import Model, Recipe
from windtunnel.records.files import read_json


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One folder of each of the three."""
    root = tmp_path_factory.mktemp("kept")
    assessed, train = load_dataset(Data(samples={"n": 20}), 0)
    save_datasets(assessed, train, root / "data")
    import_model(Model(train=Recipe(architecture="mlp", epochs=1)), train, 0, "cpu", root / "model")
    make_generators(Generators(source="train", train=GeneratorRecipe(steps=1)), train, 0, "cpu", root / "generators")
    return root


FILES = {
    "data/dataset.json": read_dataset,
    "model/model.json": read_model,
    "generators/generators.json": read_generators,
}


@pytest.mark.parametrize("name", FILES)
def test_what_was_written_is_read_as_the_same_record_key_by_key(kept, name):
    path = kept / name
    assert json.dumps(FILES[name](path.parent).model_dump(mode="json")) == json.dumps(read_json(path))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["{}", "[1]", "3", '{"source": 7}'])
def test_a_file_of_another_shape_is_refused_in_one_line_that_names_it(tmp_path, name, damage):
    path = tmp_path / name.partition("/")[2]
    path.write_text(damage)
    with pytest.raises(UserError) as refused:
        FILES[name](tmp_path)
    assert re.fullmatch(rf"{re.escape(str(path))}: .+ \(.+\); of another version\?", str(refused.value))


def test_each_missing_key_is_named(kept, tmp_path):
    """Of a trained model: an older version's file, or one that somebody edited."""
    whole = read_json(kept / "model/model.json")
    for key in whole:
        (tmp_path / "model.json").write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        with pytest.raises(UserError, match=rf"model\.json: not what `train` wrote \({key}: field required\)"):
            read_model(tmp_path)


def test_records_have_their_types(kept):
    model, generators = read_model(kept / "model"), read_generators(kept / "generators")
    assert isinstance(model, Trained)
    assert (model.recipe.recipe, model.input_shape, model.num_classes) == ("standard", (1, 8, 8), 10)
    assert isinstance(generators, TrainedGenerators)
    assert (generators.recipe.steps, generators.shape) == (1, (1, 8, 8))
    assert read_dataset(kept / "data").n == len(read_assessed(kept / "data")) == 20


def test_what_a_plug_in_keeps_comes_back_to_it_as_it_was(tmp_path):
    facts = {"source": "keras3", "layers": [1, {"kind": "dense"}], "nothing": None, "file": "weights.keras"}
    write_model(facts, tmp_path)
    assert read_model(tmp_path).facts == facts


def test_what_mlflow_resolved_to_is_read_back_and_an_id_it_lacks_is_left_out(tmp_path):
    facts = {"source": "mlflow", "uri": "models:/x/1", "run_id": "r", "model_id": None, "form": "onnx",
             "file": "weights.onnx", "sha256": "0", "original": "models:/x/1"}  # fmt: skip
    write_model(facts, tmp_path)
    record = read_model(tmp_path)
    assert isinstance(record, Fetched)
    assert (record.run_id, record.model_id, record.gradients.reason) == ("r", None, "its logits were not compared")
    assert "model_id" not in read_json(tmp_path / "model.json")


def test_every_source_of_ours_that_is_no_library_has_a_kind():
    from windtunnel.boundary.models.loaders import LOADERS

    assert set(KINDS) == set(LOADERS)
    assert all(issubclass(kind, ModelRecord) for kind in KINDS.values())


def test_generators_without_a_measured_quality_say_so(tmp_path):
    (tmp_path / "quality.json").write_text("{}")
    assert read_quality(tmp_path).model_dump() == {}
