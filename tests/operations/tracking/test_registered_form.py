"""What the registry keeps of a model gives the logits that were assessed."""

import json
from pathlib import Path

import pytest
import torch

from windtunnel.boundary.mlflow_server import connect
from windtunnel.boundary.models.load import import_model, load_classifier, preview_classifier
from windtunnel.boundary.models.trust import trust_of
from windtunnel.operations.tracking.registry import _log_weights
from windtunnel.params.model import Model

# A network whose outputs are objects with `.logits`, as those of Hugging Face's are, and no library's.
FACTORY = """
from dataclasses import dataclass
import torch
from windtunnel.boundary.models.architectures import mlp

@dataclass
class Output:
    logits: torch.Tensor

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp((1, 8, 8), 10)
    def forward(self, x):
        return Output(self.body(x))
"""


@pytest.mark.slow
def test_a_network_that_gives_objects_with_logits_is_registered_by_its_logits(tmp_path, monkeypatch, digits_subject):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("net_of_objects.py").write_text(FACTORY)
    import net_of_objects

    data = digits_subject.dataset.subset(torch.arange(20))
    torch.save(net_of_objects.Net().state_dict(), "weights.pt")
    model = Model(source="state_dict", path="weights.pt", factory="net_of_objects:Net")
    import_model(model, None, 0, "cpu", Path("kept"), None, data)
    given = load_classifier(Path("kept"), "cpu", data, trust_of(model))
    Path("params.yaml").write_text(json.dumps({"data": {}, "budget": {"epsilon": 0.1}, "model": model.model_dump()}))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = connect(uri)
    made = client.create_logged_model(client.create_experiment("e", str(tmp_path / "artifacts")), name="model-1")
    client.finalize_logged_model(made.model_id, "READY")

    assert _log_weights(made.model_id, Path("kept"), [1, 8, 8]) == made.model_id

    found = preview_classifier(Model(source="mlflow", uri=f"models:/{made.model_id}"), data, None, "cpu", uri)
    torch.testing.assert_close(found.logits(data.inputs), given.logits(data.inputs))
