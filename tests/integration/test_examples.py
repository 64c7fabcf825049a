"""The examples, as a reader runs them, at a small size: data, weights, init and the pipeline. Skips where a package is missing."""

import importlib.util
import json
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

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


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("**/params.yaml")), ids=lambda file: file.parent.name)
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
