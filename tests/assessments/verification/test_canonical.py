"""A verdict is about the function: in whatever form, at whatever scale and in whatever mode the module was handed over."""

import copy
from dataclasses import replace

import pytest
import torch
from balls import budget, entry, first, subject_with
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.canonical.subject import canonical_subject, unit_of
from windtunnel.assessments.verification.canonical.trace import UntraceableError
from windtunnel.assessments.verification.cascade import solver_step
from windtunnel.assessments.verification.cascade.solver_step import graph_for_marabou
from windtunnel.assessments.verification.marabou.onnx_graph import check_scale
from windtunnel.assessments.verification.marabou.queries import MARABOU_TOLERANCE, check_equivalence
from windtunnel.assessments.verification.marabou.worker import Query
from windtunnel.boundary.models.backends import OnnxModule
from windtunnel.boundary.models.load import export_onnx
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.statistics import median
from windtunnel.core.subject import subject_of

MEAN, STD = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.22, 0.26])
BALLS = {Norm.LINF: 0.004, Norm.L2: 0.05, Norm.L1: 0.1}


def linears(module):
    return [part for part in module.modules() if isinstance(part, nn.Linear)]


def scaled(module, logits, hidden=1.0):
    """The logits times a factor, the values of the first hidden layer times another."""
    module = copy.deepcopy(module)
    first_layer, *_, last = linears(module)
    with torch.no_grad():
        for value in (first_layer.weight, first_layer.bias, *(layer.bias for layer in linears(module)[1:-1])):
            value.mul_(hidden)
        last.weight.mul_(logits / hidden)
        last.bias.mul_(logits)
    return module


def as_given(subject, module, targets=None):
    data = subject.dataset
    return subject_with(
        module, data.inputs, subject.classifier.num_classes, data.targets if targets is None else targets
    )


def verdicts(subject, epsilon, algorithm="crown", **options):
    return assess("v", entry(algorithm, **options), budget(epsilon), subject).data["verdicts"]


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(5)
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
    return subject_with(network, torch.rand(12, 1, 3, 3), 3)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    logits=st.floats(-30, 30).map(lambda power: 10.0**power),
    hidden=st.floats(-6, 6).map(lambda power: 10.0**power),
    shift=st.floats(-5, 5),
    order=st.permutations(range(3)),
)
def test_scaling_shifting_and_permuting_logits_changes_no_verdict(tiny, logits, hidden, shift, order):
    module = copy.deepcopy(tiny.classifier.module)
    with torch.no_grad():
        module[3].bias.add_(shift)
        module[3].weight.copy_(module[3].weight[list(order)].clone())
        module[3].bias.copy_(module[3].bias[list(order)].clone())
    targets = torch.tensor([list(order).index(int(t)) for t in tiny.dataset.targets])
    changed = as_given(tiny, scaled(module, logits, hidden), targets)
    assert torch.equal(verdicts(changed, 0.1), verdicts(tiny, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize(("logits", "hidden"), [(1e-5, 1.0), (1e-30, 1e-6), (1e30, 1.0)])
def test_marabou_and_the_cascade_decide_alike_at_every_scale(mlp_subject, logits, hidden):
    """At 1e-5 Marabou once certified 12 of 12, of which 7 had a counter-example: its tolerances are absolute."""
    subject = first(mlp_subject, 12)
    changed = as_given(subject, scaled(subject.classifier.module, logits, hidden))
    expected = verdicts(subject, 0.06, "linf-box")
    assert (expected == Verdict.FALSIFIED).sum() >= 3
    assert torch.equal(verdicts(changed, 0.06, "linf-box"), expected)
    assert torch.equal(verdicts(changed, 0.06, "cascade", steps=["ibp", "crown", "marabou"]), expected)


def test_marabou_decides_alike_where_logits_are_small(tiny):
    small = as_given(tiny, scaled(tiny.classifier.module, 1e-6, 1e-4))
    assert torch.equal(verdicts(small, 0.2, "linf-box"), verdicts(tiny, 0.2, "linf-box"))


WITHOUT_GRADIENTS = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})


@pytest.mark.parametrize("capabilities", [frozenset(Capability), WITHOUT_GRADIENTS])
def test_an_onnx_graph_of_small_logits_is_brought_to_scale_and_one_of_small_values_refused(
    tiny, tmp_path, capabilities
):
    small = as_given(tiny, scaled(tiny.classifier.module, 1e-6))
    path = export_onnx(small.classifier, tmp_path / "small.onnx")
    given = replace(small.classifier, onnx_path=path, capabilities=capabilities)
    canonical = canonical_subject(replace(small, classifier=given))
    graph, _, own = graph_for_marabou(canonical, given, tmp_path)
    check_equivalence(own.subject.classifier, graph, small.dataset.inputs)
    check_scale(graph, small.dataset.inputs)
    with pytest.raises(IncompatibleError, match=r"at most .*e-0"):
        check_scale(path, small.dataset.inputs)


@pytest.mark.parametrize("spread", [1.2, 1.00049], ids=["any", "where four digits of the unit round apart"])
def test_queries_allow_for_what_the_deployed_file_and_its_exported_graph_differ_by(tiny, tmp_path, monkeypatch, spread):
    unit, _ = unit_of(tiny.clean_logits.double())
    network = scaled(tiny.classifier.module, spread / unit)
    own = as_given(tiny, network)
    measured = float(median((own.clean_logits.amax(1) - own.clean_logits.amin(1)).tolist()))
    own = as_given(tiny, scaled(network, spread / measured))
    path = export_onnx(own.classifier, tmp_path / "model.onnx")
    deployed = nn.Sequential(own.classifier.module, Times(1.00005))
    given = replace(own.classifier, module=deployed, onnx_path=path, capabilities=WITHOUT_GRADIENTS)
    queries = list[Query]()
    monkeypatch.setattr(solver_step, "solve_all", lambda _, asked, *__: queries.extend(asked) or [])
    subject = subject_of(given, tiny.dataset)
    assess("v", entry("linf-box"), budget(0.05), subject)
    apart = float((subject.clean_logits - own.clean_logits).abs().max()) / canonical_subject(subject).unit
    assert apart > 1e-5
    assert all(query.margin <= -(MARABOU_TOLERANCE + 2 * apart) for query in queries)
    assert queries


@pytest.mark.parametrize("ending", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_file_without_gradients_that_ends_in_softmax_is_decided_as_its_logits_are(tmp_path, ending):
    torch.manual_seed(7)
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    network[1].bias.data = -network[1].weight.data.sum(1) / 2
    plain = subject_with(network, torch.rand(8, 1, 3, 3), 3)
    path = export_onnx(replace(plain.classifier, module=nn.Sequential(network, ending).eval()), tmp_path / "model.onnx")
    given = replace(plain.classifier, module=OnnxModule(path), onnx_path=path, capabilities=WITHOUT_GRADIENTS)
    subject = subject_of(given, plain.dataset)
    result = assess("v", entry("linf-box", output_bounds=True), budget(0.1), subject)
    expected = verdicts(plain, 0.1, "linf-box")
    assert len(set(expected.tolist())) > 1
    assert torch.equal(result.data["verdicts"], expected)
    lower, upper = (result.data["output_bounds"][side] for side in ("lower", "upper"))
    is_bounded = ~lower.isnan()
    assert is_bounded.any()
    assert (lower <= subject.clean_logits + 1e-4)[is_bounded].all()
    assert (upper >= subject.clean_logits - 1e-4)[is_bounded].all()
    assert not isinstance(ending, nn.Softmax) or (upper[is_bounded] <= 1 + 1e-6).all()


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def test_the_equivalence_check_is_relative(tiny, tmp_path):
    for factor in (1e-6, 1e30):
        changed = as_given(tiny, scaled(tiny.classifier.module, factor))
        path = export_onnx(changed.classifier, tmp_path / "model.onnx")
        check_equivalence(changed.classifier, path, tiny.dataset.inputs)
        with torch.no_grad():
            changed.classifier.module[3].bias[0].add_(0.01 * factor)
        with pytest.raises(IncompatibleError, match="differs from the model"):
            check_equivalence(changed.classifier, path, tiny.dataset.inputs)


def floats(x):
    return (x - 0.47) / 0.24


def buffers_4d(x):
    return (x - MEAN[None, : x.shape[1], None, None]) / STD[None, : x.shape[1], None, None]


def buffers_3d(x):
    return (x - MEAN[: x.shape[1]].view(-1, 1, 1)) / STD[: x.shape[1]].view(-1, 1, 1)


def views(x):
    return (x - MEAN[: x.shape[1]].view(1, -1, 1, 1)).div(STD[: x.shape[1]].view(1, -1, 1, 1))


def in_place(x):
    return x.clone().sub_(MEAN[: x.shape[1]].view(-1, 1, 1)).div_(STD[: x.shape[1]].view(-1, 1, 1))


def multiplied(x):
    return x * (1 / STD[: x.shape[1]].view(-1, 1, 1)) - (MEAN / STD)[: x.shape[1]].view(-1, 1, 1)


class Normalised(nn.Module):
    def __init__(self, how, network):
        super().__init__()
        self.how, self.network = how, network

    def forward(self, x):
        return self.network(self.how(x))


class AsLayer(nn.Module):
    """The normalisation as a convolution of one pixel, or as batch norm."""

    def __init__(self, kind, channels):
        super().__init__()
        mean, std = MEAN[:channels], STD[:channels]
        self.layer = nn.Conv2d(channels, channels, 1) if kind == "conv" else nn.BatchNorm2d(channels, eps=0)
        with torch.no_grad():
            if kind == "conv":
                self.layer.weight.copy_(torch.diag(1 / std)[..., None, None])
                self.layer.bias.copy_(-mean / std)
            else:
                self.layer.running_mean.copy_(mean)
                self.layer.running_var.copy_(std**2)

    def forward(self, x):
        return self.layer(x)


FORMS = [buffers_4d, buffers_3d, views, in_place, multiplied]


@pytest.fixture(scope="module", params=[1, 3], ids=["grey", "colour"])
def convolutional(request):
    torch.manual_seed(2)
    network = nn.Sequential(
        nn.Conv2d(request.param, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5),
        nn.Conv2d(6, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5),
    )  # fmt: skip
    network[1].running_mean.add_(0.2)
    network[1].running_var.mul_(1.7)
    return network, torch.rand(6, request.param, 8, 8)


@pytest.mark.parametrize(
    "norm", [Norm.LINF, pytest.param(Norm.L2, marks=pytest.mark.slow), pytest.param(Norm.L1, marks=pytest.mark.slow)]
)
def test_all_forms_of_one_normalisation_give_equal_bounds(convolutional, norm):
    network, inputs = convolutional
    channels = inputs.shape[1]
    forms = [*FORMS, *(AsLayer(kind, channels) for kind in ("conv", "norm"))]
    modules = [Normalised(form, network) for form in forms]
    name = "crown" if norm is Norm.LINF else f"crown-{norm.value.lower()}"
    found = [assess("v", entry(name), budget(BALLS[norm], norm), subject_with(module, inputs, 5)) for module in modules]
    margins = torch.stack([result.data["lower_margins"] for result in found])
    assert margins.isfinite().all()
    assert (found[0].data["verdicts"] == Verdict.VERIFIED).any()
    assert torch.allclose(margins, margins[:1].expand_as(margins), rtol=1e-4, atol=1e-5)
    assert not {caveat.code for result in found for caveat in result.caveats}


@pytest.mark.parametrize("norm", list(BALLS))
@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown"])
def test_the_balls_of_a_normalised_model_stay_within_its_bounds(convolutional, norm, method):
    """auto-LiRPA takes the L2 or L1 ball of a normalised input for its centre: IBP once certified all of it."""
    network, inputs = convolutional
    subject = subject_with(Normalised(floats, network), inputs, 5)
    name = method if norm is Norm.LINF else f"{method}-{norm.value.lower()}"
    bounds = assess("v", entry(name), budget(BALLS[norm], norm), subject).data["output_bounds"]
    generator = torch.Generator().manual_seed(0)
    for i in range(len(inputs)):
        noise = torch.randn(500, *inputs.shape[1:], generator=generator).flatten(1)
        if norm is Norm.LINF:
            noise = noise.sign()
        if norm is Norm.L1:
            noise = noise * (noise.abs() == noise.abs().amax(1, keepdim=True))
        size = torch.linalg.vector_norm(noise, ord={Norm.LINF: torch.inf, Norm.L2: 2, Norm.L1: 1}[norm], dim=1)
        points = inputs[i] + BALLS[norm] * (noise / size[:, None]).view(-1, *inputs.shape[1:])
        logits = subject.classifier.logits(points.clamp(0, 1))
        assert (logits >= bounds["lower"][i] - 1e-4).all()
        assert (logits <= bounds["upper"][i] + 1e-4).all()


def test_an_operator_that_is_wrong_at_the_input_of_an_l2_ball_is_refused(tiny):
    class Squared(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            return self.network(x * x)

    subject = as_given(tiny, Squared(tiny.classifier.module))
    bounder = Bounder(canonical_subject(subject).subject, Norm.L2, 8)
    with pytest.raises(IncompatibleError, match="at the input, which it bounds wrongly under L2"):
        list(bounder.bound("crown", torch.arange(2), torch.full((2,), 0.1)))


def test_nothing_changes_the_users_module(convolutional):
    network, inputs = convolutional
    module = copy.deepcopy(network)
    subject = subject_with(module, inputs, 5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for algorithm in ("crown", "alpha-crown", "linf-box"):
        assess("v", entry(algorithm, timeout=1), budget(0.001), first(subject, 1))
    assert not any(part.training for part in module.modules())
    assert all(not p.requires_grad and p.grad is None for p in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("ending", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_softmax_at_the_end_is_taken_off_and_said(tiny, ending):
    plain, ended = tiny, as_given(tiny, nn.Sequential(tiny.classifier.module, ending))
    bare, result = (assess("v", entry("crown"), budget(0.1), subject) for subject in (plain, ended))
    assert (bare.data["verdicts"] == Verdict.VERIFIED).any()
    assert torch.equal(result.data["verdicts"], bare.data["verdicts"])
    assert [c.code for c in result.caveats] == ["logits_verified"]
    bounds = result.data["output_bounds"]
    noise = 0.1 * (2 * torch.rand(300, 1, 3, 3) - 1)
    for i in range(len(plain.dataset)):
        given_ = ended.classifier.logits((plain.dataset.inputs[i] + noise).clamp(0, 1))
        assert (given_ >= bounds["lower"][i] - 1e-5).all()
        assert (given_ <= bounds["upper"][i] + 1e-5).all()


def test_a_model_that_cannot_be_traced_is_copied_and_scaled(tiny, monkeypatch):
    def untraceable(*_):
        raise UntraceableError("for the sake of the test")

    monkeypatch.setattr("windtunnel.assessments.verification.canonical.trace.trace", untraceable)
    for factor in (1.0, 1e-6):
        module = nn.Sequential(scaled(tiny.classifier.module, factor), nn.Dropout(0.5))
        subject = as_given(tiny, module)
        assert torch.equal(verdicts(subject, 0.1), verdicts(tiny, 0.1))
        assert not subject.classifier.module.training


class OfOneBatch(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x.reshape(len(x), -1))


def test_a_model_that_fixes_the_size_of_the_batch_is_refused_with_what_to_write(tiny):
    """len() is a number, and whoever traces it keeps that number."""
    with pytest.raises(IncompatibleError, match=r"as len\(x\) does; write x.shape\[0\]"):
        verdicts(as_given(tiny, OfOneBatch(tiny.classifier.module)), 0.1)


class Branching(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x) if float(x.sum()) > 4 else self.network(1 - x)


def test_a_model_that_branches_on_its_input_is_refused(tiny):
    """auto-LiRPA follows the branch of the first sample alone, and certified what is not the model."""
    with pytest.raises(IncompatibleError, match="chooses by the values of its input"):
        verdicts(as_given(tiny, Branching(tiny.classifier.module)), 0.1)


def test_an_assessment_is_stochastic_where_its_falsifier_draws(tiny):
    def stochastic(algorithm, **options):
        given_ = entry(algorithm, **options)
        return assess("v", given_, budget(0.1), tiny).semantics.algorithm.randomness.value != "deterministic"

    assert stochastic("cascade", steps=["attack", "crown"])
    assert stochastic("crown", radius={"max": 0.2, "tolerance": 0.1})
    assert not stochastic("crown")
    assert not stochastic("cascade", steps=["crown"])


def test_the_tolerance_of_each_verifier_stands_beside_its_verdicts(tiny):
    large = as_given(tiny, scaled(tiny.classifier.module, 1000.0))
    tolerances = [
        assess("v", entry("cascade", steps=["crown", "marabou"]), budget(0.1), subject).kwargs["tolerances"]
        for subject in (tiny, large)
    ]
    assert 0 < tolerances[0]["crown"] < tolerances[0]["marabou"] < 0.01
    assert tolerances[1]["marabou"] == pytest.approx(1000 * tolerances[0]["marabou"], rel=0.01)
