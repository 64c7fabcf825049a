"""A torch.export program that cuts off its gradients is attacked all the same; one that cannot be names the operator."""

import pytest
import torch
from torch import Tensor, nn

from windtunnel.boundary.models.load import import_model, load_classifier
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.contracts import Capability
from windtunnel.params.model import Model


class Cut(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


class NoGrad(Cut):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network(x) * 1.0


class Detached(Cut):
    def forward(self, x: Tensor) -> Tensor:
        return self.network((x * 1.0).detach())


class Coded(Cut):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(self.network(x).argmax(1), 10).float()


def loaded(module, subject, folder):
    shapes = ({0: torch.export.Dim("n")},)
    program = torch.export.export(module.eval(), (torch.zeros(2, 1, 8, 8),), dynamic_shapes=shapes)
    torch.export.save(program, folder / "w.pt2")
    model = Model(source="export", path=str(folder / "w.pt2"))
    import_model(model, None, 0, "cpu", folder / "kept")
    return load_classifier(folder / "kept", "cpu", subject.dataset, trust_of(model))


@pytest.mark.parametrize(("kind", "cut"), [(NoGrad, "no_grad"), (Detached, "detach")])
def test_a_program_without_gradients_gets_them_and_keeps_every_logit(tmp_path, mlp_subject, kind, cut):
    network = mlp_subject.classifier.module
    found = loaded(kind(network), mlp_subject, tmp_path)
    assert Capability.AUTOGRAD in found.capabilities
    x = mlp_subject.dataset.inputs[:5]
    assert torch.equal(found.logits(x), mlp_subject.classifier.logits(x))
    gradients = []
    for module in (found.module, network):
        given = x.clone().requires_grad_()
        gradients += torch.autograd.grad(module(given).square().sum(), given)
    torch.testing.assert_close(*gradients)
    (caveat,) = found.caveats
    assert caveat.code == "converted_model"
    assert cut in caveat.text


def test_a_program_that_has_none_names_the_operator(tmp_path, mlp_subject):
    found = loaded(Coded(mlp_subject.classifier.module), mlp_subject, tmp_path)
    assert Capability.AUTOGRAD not in found.capabilities
    assert "cuts off the gradient (argmax)" in found.source
    assert not found.caveats
