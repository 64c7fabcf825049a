"""The examples, as a reader runs them, at a small size: data, weights, init and the pipeline. Skips where a package is missing."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

from windtunnel.boundary.params import load_params
from windtunnel.boundary.params_file import read_params
from windtunnel.params.load import check_whole

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("run_examples", EXAMPLES / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("**/params.yaml")), ids=lambda file: "-".join(file.parts[-3:-1]))
def test_the_params_of_every_example_are_whole(file):
    load_params(file)
    check_whole(file, read_params(file))


def test_the_face_detector_counts_the_queries_that_windtunnel_counts(runner, tmp_path, monkeypatch):
    folder = runner.copy_example("binary-http", tmp_path)
    params = folder / "robustness" / "params.yaml"
    params.write_text(params.read_text().replace("max_queries: 500", "max_queries: 10"))
    runner.call([sys.executable, "prepare.py", "--samples", "8"], folder)
    call, counts = runner.call, []

    def call_and_count(command, *arguments, **options):
        call(command, *arguments, **options)
        with urlopen("http://127.0.0.1:8471/count", timeout=10) as answer:
            counts.append(json.load(answer)["count"])

    monkeypatch.setattr(runner, "call", call_and_count)
    (reports,) = runner.assess(folder, ["query@square"])
    asked = {
        path.parent.name: json.loads(path.read_text()).get("rows_asked", 0) for path in reports.glob("*/*/runtime.json")
    }
    assert asked["clean"] == 8
    assert 8 < asked["square"] <= 80
    assert counts == [0, sum(asked.values())]
    metadata = json.loads((reports / "robustness" / "square" / "metadata.json").read_text())
    assert metadata["metrics"]["n_samples"] == 8


def test_the_twin_of_the_int8_file_is_the_float_file(runner, tmp_path, shared, monkeypatch):
    pytest.importorskip("ai_edge_litert")
    if not (shared / "data/colour/tiny").is_dir():
        pytest.skip("no TFLite files here")
    from windtunnel.boundary.data.load import load_dataset
    from windtunnel.boundary.models.load import preview_classifier

    monkeypatch.setenv("WINDTUNNEL_SHARED", str(shared.resolve()))
    folder = tmp_path / "resnet8-int8"
    shutil.copytree(EXAMPLES / "resnet8-int8", folder)
    runner.call([sys.executable, "prepare.py", "--samples", "20"], folder)
    monkeypatch.syspath_prepend(str(folder))
    logits, predictions = {}, {}
    for kind in ("float", "int8"):
        monkeypatch.chdir(folder / kind)
        params = load_params(Path("params.yaml"))
        data, _ = load_dataset(params.data, params.seed)
        deployed = preview_classifier(params.model, data, None, "cpu")
        (caveat,) = [c for c in deployed.caveats if c.code == "twin"]
        logits[kind], predictions[kind] = deployed.logits(data.inputs), deployed.predict(data.inputs)
        twin = preview_classifier(params.model.twin_model, data, None, "cpu")
        agree = int((twin.predict(data.inputs) == predictions[kind]).sum())
        assert f"agree on {agree} of 20 samples" in caveat.text
    assert torch.allclose(twin.logits(data.inputs).softmax(1), logits["float"].softmax(1), atol=1e-5)
    assert not torch.equal(logits["int8"], logits["float"])
    assert (predictions["int8"] == data.targets).float().mean() > 0.7
