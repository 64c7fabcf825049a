"""What branch and bound knows of the layers inside is handed to Marabou, and changes no verdict."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from balls import budget, entry, subject_with
from exact import NETWORKS, exact_margin, network
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, improve_network
from windtunnel.assessments.verification.branch_and_bound.session import network_of
from windtunnel.assessments.verification.branch_and_bound.tighten import TighteningBudget, tighten
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.cascade import search_step, solver_step
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.marabou.queries import queries_of
from windtunnel.assessments.verification.marabou.worker import Solve, _Solver
from windtunnel.assessments.verification.regions import Region
from windtunnel.core.contracts import Norm, Verdict

CPU = torch.device("cpu")


def asked(subject, epsilon, folder):
    """(the graph for Marabou, a query without bounds, the same with them) for the first sample."""
    canonical = canonical_subject(subject)
    graph = solver_step.graph_for_marabou(canonical, subject.classifier, folder)
    own = canonical.subject
    (query,) = queries_of(own, epsilon, torch.arange(1), one_by_one=False, slack=canonical.slack)
    net = network_of(own.classifier)
    bounded = bound_network(net, Region.around(own.dataset.inputs[:1], Norm.LINF, epsilon, CPU), 64)
    every = [torch.ones(2, 1, layer.size, dtype=torch.bool) for layer in net.layers]
    improve_network(bounded, every, 10, 64, 2**30, lambda: False)
    tighten(bounded, every, TighteningBudget(4, False), 64, 2**30, lambda: False)
    inner = torch.empty(1, 4, sum(net.sizes))
    pairs = [(low[0], up[0]) for low, up in zip(bounded.low, bounded.up, strict=True)]
    search_step._look_inside(inner, {0: pairs}, net, bounded.region)
    layers = inner[0].split(net.sizes, 1)
    return graph, query, replace(query, inner=tuple(map(solver_step._with_room, layers)))


def small(kind, seed):
    module = network(kind, seed)
    inputs = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return subject_with(module, inputs, int(module(inputs).shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if kind != "leaky"])
def test_verdicts_are_those_without_and_those_of_all_patterns(kind, tmp_path):
    met = set()
    for seed in range(2):
        subject = small(kind, seed)
        x, target = subject.dataset.inputs[0], int(subject.dataset.targets[0])
        for epsilon in (0.03, 0.1, 0.3):
            folder = tmp_path / f"{seed}-{epsilon}"
            folder.mkdir()
            graph, plain, handed = asked(subject, epsilon, folder)
            work = Solve(graph.read_bytes(), 600, Deadline(float("inf")))
            low, high = ((x.double() + side * epsilon).clamp(0, 1) for side in (-1, 1))
            margin = exact_margin(subject.classifier.module, low, high, target)
            if abs(margin) < 1e-2:
                continue
            verdict = work(handed).verdict
            assert verdict is work(plain).verdict
            assert verdict is (Verdict.VERIFIED if margin > 0 else Verdict.FALSIFIED)
            met.add(verdict)
    assert len(met) == 2


def test_bounds_are_taken_for_layers_that_stand_in_the_graph_and_hold_at_points_of_the_box(tmp_path):
    subject = small("residual", 1)
    graph, plain, handed = asked(subject, 0.2, tmp_path)
    solver, free = (
        _Solver(str(graph), handed, time.monotonic() + 600),
        _Solver(str(graph), plain, time.monotonic() + 600),
    )
    assert solver.decide()[0] is free.decide()[0]
    units = {variable for pair in solver._network.reluList for variable in pair}
    assert units <= solver._known[0].keys()
    assert units - free._known[0].keys()
    generator = np.random.default_rng(0)
    for _ in range(5):
        point = generator.uniform(plain.lower, plain.upper).astype(np.float32)
        code, values = free._solve([], point, point)
        assert code == "sat"
        assert all(solver._known[0][v] <= values[v] <= solver._known[1][v] for v in units)


def test_bounds_of_a_layer_that_the_graph_does_not_have_are_left_out(tmp_path):
    graph, _, handed = asked(small("dense", 1), 0.2, tmp_path)
    first, second = handed.inner
    wrong = replace(first, values=first.values + 1)
    solver = _Solver(str(graph), replace(handed, inner=(wrong, second)), time.monotonic() + 600)
    before = [dict(known) for known in solver._known]
    solver.decide()
    relus = solver._network.reluList
    assert all(solver._known[k].get(v) == before[k].get(v) for v, _ in relus[: len(first.low)] for k in (0, 1))


def test_bounds_that_exclude_a_point_of_the_box_prove_nothing(tmp_path):
    graph, _, handed = asked(small("dense", 1), 0.2, tmp_path)
    first, second = handed.inner
    for wrong in (
        replace(second, up=second.values.min(0) - 1e-6),
        replace(second, low=second.values.max(0) + 1e-6),
    ):
        answer = Solve(graph.read_bytes(), 600, Deadline(float("inf")))(replace(handed, inner=(first, wrong)))
        assert answer.verdict is Verdict.ERROR
        assert "exclude" in answer.reason


def test_handed_bounds_have_room_on_both_sides_of_what_is_known():
    known = torch.tensor([[-3.0, 0.0, 1e-5], [-1e-6, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    low, up = (torch.from_numpy(end) for end in (solver_step._with_room(known).low, solver_step._with_room(known).up))
    assert (known[0] - low >= 1e-4 * (1 + known[0].abs()) - 1e-9).all()
    assert (up - known[1] >= 1e-4 * (1 + known[1].abs()) - 1e-9).all()


@pytest.mark.slow
def test_the_cascade_hands_over_what_its_search_leaves_undecided(monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), *[p for _ in range(3) for p in (nn.Linear(16, 16), nn.ReLU())], nn.Linear(16, 3)
    )
    for part in module:
        if isinstance(part, nn.Linear):
            part.weight.data.mul_(2)
    subject = subject_with(module, torch.rand(8, 1, 4, 4), 3)
    net = network_of(canonical_subject(subject).subject.classifier)
    given, solve_all = [], solver_step.solve_all

    def watched(onnx, queries, *rest):
        given.extend(queries)
        return solve_all(onnx, queries, *rest)

    monkeypatch.setattr(solver_step, "solve_all", watched)
    for steps in (["branch-and-bound", "marabou"], ["marabou"]):
        given.clear()
        options = {"params": {"domains": 1}} if len(steps) > 1 else {}
        found = assess("v", entry("cascade", steps=steps, timeout=600, **options), budget(0.06), subject)
        assert given
        assert all(bool(query.inner) == (len(steps) > 1) for query in given)
        assert not (found.data["verdicts"] == Verdict.UNKNOWN).any(), found.caveats
        for query in given:
            points = torch.from_numpy(np.random.default_rng(0).uniform(query.lower, query.upper, (200, 16)))
            met = net.inputs_of_activations(points.view(-1, 1, 4, 4)).numpy()
            parts = np.split(met, np.cumsum(net.sizes)[:-1], 1)
            for layer, values in zip(query.inner, parts, strict=False):
                assert (layer.low < values).all()
                assert (values < layer.up).all()
