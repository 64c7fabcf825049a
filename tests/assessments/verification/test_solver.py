"""Marabou: agreement with the cascade, graphs that are not the model, and solvers that end badly."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from balls import budget, entry, first, subject_with
from onnx import helper
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.cascade.solver_step import graph_for_marabou
from windtunnel.assessments.verification.marabou import queries as marabou
from windtunnel.assessments.verification.marabou.queries import check_equivalence, queries_of, replay, solve_all
from windtunnel.boundary.models.load import export_onnx
from windtunnel.core.contracts import Capability, Verdict
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.runtime.executors.dispatcher import Lost
from windtunnel.runtime.placement import VARIABLE

SAMPLES = 50


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.01, 0.03, 0.05])
def test_marabou_and_the_cascade_agree_and_crown_never_certifies_what_marabou_falsifies(mlp_subject, epsilon):
    subject = first(mlp_subject, SAMPLES)
    complete = assess("m", entry("linf-box"), budget(epsilon), subject).data
    cascade = assess("c", entry("cascade"), budget(epsilon), subject).data["verdicts"]
    crown = assess("v", entry("crown"), budget(epsilon), subject).data["verdicts"]
    decided = torch.tensor([int(Verdict.VERIFIED), int(Verdict.FALSIFIED)])
    both = torch.isin(complete["verdicts"], decided) & torch.isin(cascade, decided)
    assert both.sum() >= SAMPLES - 1
    assert torch.equal(complete["verdicts"][both], cascade[both])
    broken = complete["verdicts"] == Verdict.FALSIFIED
    assert not ((crown == Verdict.VERIFIED) & broken).any()
    examples = complete["perturbed_inputs"][broken]
    assert (subject.classifier.predict(examples) != subject.dataset.targets[broken]).all()
    assert (complete["perturbation_distance"][broken] <= epsilon + 1e-5).all()


@pytest.fixture(scope="module")
def tiny():
    """A 9-6-3 network: whatever is asked of a solver takes a moment."""
    torch.manual_seed(5)
    return subject_with(
        nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3)), torch.rand(4, 1, 3, 3), 3
    )


def test_a_query_for_each_rival_and_one_for_all_give_the_same_verdicts(tiny):
    for epsilon in (0.05, 0.2):
        verdicts = [
            assess("m", entry("linf-box", other_classes=other_classes), budget(epsilon), tiny).data["verdicts"]
            for other_classes in ("together", "one_by_one")
        ]
        assert torch.equal(*verdicts)
        assert not (verdicts[0] == Verdict.UNKNOWN).any()


def test_rivals_are_asked_about_the_nearest_first(tiny):
    (query, *_) = queries_of(tiny, 0.1, torch.arange(1), one_by_one=True)
    assert len(query.other_classes) == 2
    assert query.logits[query.other_classes[0]] >= query.logits[query.other_classes[1]]


def test_the_solvers_logit_bounds_hold_and_are_tight(tiny):
    found = assess("m", entry("linf-box", output_bounds=True), budget(0.05), first(tiny, 2))
    lower, upper = found.data["output_bounds"]["lower"], found.data["output_bounds"]["upper"]
    crown = assess("c", entry("crown"), budget(0.05), first(tiny, 2)).data["output_bounds"]
    assert lower.isfinite().all()
    noise = (2 * torch.rand(2000, 1, 3, 3) - 1) * 0.05
    noise[1000:] = noise[1000:].sign() * 0.05
    for i in range(2):
        logits = tiny.classifier.logits((tiny.dataset.inputs[i] + noise).clamp(0, 1))
        assert (logits >= lower[i] - 1e-4).all()
        assert (logits <= upper[i] + 1e-4).all()
        # A complete solver is never looser than CROWN by more than its tolerance, and random corners nearly reach it.
        assert (upper[i] <= crown["upper"][i] + 0.06).all()
        assert (upper[i] - logits.amax(0) < 0.2).all()


class Normalised(nn.Module):
    """(pixel - mean) / std inside the model."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network((x - 0.3) / torch.tensor([0.2]))


def test_normalisation_and_convolutions_are_part_of_the_graph_that_marabou_reads(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    network[1].running_mean += 0.3
    network[1].running_var *= 2.0
    subject = subject_with(Normalised(network), torch.rand(3, 1, 6, 6), 3)
    graph, *_ = graph_for_marabou(canonical_subject(subject), subject.classifier, tmp_path)
    assert not {"Div", "BatchNormalization"} & {node.op_type for node in onnx.load(str(graph)).graph.node}
    given = budget(0.002)
    complete, crown = (assess("v", entry(name), given, subject).data["verdicts"] for name in ("linf-box", "crown"))
    assert (complete == Verdict.VERIFIED).any()
    assert torch.equal(complete[crown == Verdict.VERIFIED], crown[crown == Verdict.VERIFIED])


def test_an_onnx_graph_of_another_model_is_refused(mlp_subject, tmp_path):
    path = export_onnx(mlp_subject.classifier, tmp_path / "model.onnx")
    check_equivalence(mlp_subject.classifier, path, mlp_subject.dataset.inputs[:5])
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with pytest.raises(IncompatibleError, match="differs from the model"):
        check_equivalence(replace(mlp_subject.classifier, module=other), path, mlp_subject.dataset.inputs[:5])


def test_a_missing_graph_and_one_with_two_outputs_are_refused_in_one_line(tiny, tmp_path):
    path = export_onnx(tiny.classifier, tmp_path / "model.onnx")
    graph = onnx.load(str(path))
    inner = graph.graph.node[-1].input[0]
    graph.graph.output.append(helper.make_tensor_value_info(inner, onnx.TensorProto.FLOAT, [1, 6]))
    onnx.save(graph, str(tmp_path / "two.onnx"))
    forward_only = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})
    for name, says in (("two.onnx", "and 2 outputs"), ("gone.onnx", "No such file")):
        classifier = replace(tiny.classifier, onnx_path=tmp_path / name, capabilities=forward_only)
        with pytest.raises(UserError, match=says) as caught:
            assess("m", entry("linf-box"), budget(0.05), replace(tiny, classifier=classifier))
        assert "\n" not in str(caught.value)


def test_a_counter_example_outside_the_box_or_of_the_right_class_is_none(tiny, tmp_path):
    path = export_onnx(tiny.classifier, tmp_path / "model.onnx")
    (query, *_) = queries_of(tiny, 0.01, torch.arange(1), one_by_one=False)
    clean = tiny.dataset.inputs[0].flatten().numpy()
    assert "outside the box" in replay(tiny.classifier, path, query, clean + np.float32(0.5), (1, 3, 3))
    assert "no other class leads" in replay(tiny.classifier, path, query, clean, (1, 3, 3))


@pytest.mark.slow
def test_a_solver_killed_from_outside_is_asked_again_and_the_others_answer(digits_subject, tmp_path, monkeypatch):
    """A convolutional network keeps its solver busy; the one beside it is quick."""
    monkeypatch.setenv(VARIABLE, "here")  # one solver at a time
    subject = first(digits_subject, 1)
    path = export_onnx(subject.classifier, tmp_path / "model.onnx")
    hard = queries_of(subject, 0.2, torch.arange(1), one_by_one=False)[0]
    wide = replace(hard, index=7, lower=hard.lower, upper=hard.lower + np.float32(1e-4))
    answers, before = [], set(multiprocessing.active_children())
    run = threading.Thread(target=lambda: answers.extend(solve_all(path, [hard, wide], 10, float("inf"), "m")))
    run.start()
    deadline = time.monotonic() + 60
    while not (solvers := set(multiprocessing.active_children()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    (solver,) = solvers
    solver.kill()
    run.join(120)
    asked_again, other = answers
    assert asked_again.index == 0
    assert asked_again.verdict is not Verdict.ERROR
    assert (other.index, other.verdict) in {(7, Verdict.VERIFIED), (7, Verdict.FALSIFIED)}


@pytest.mark.parametrize(
    ("lost", "verdict", "reason"),
    [
        (Lost("its worker died (SIGKILL), 5 times"), Verdict.ERROR, "without an answer: its worker died"),
        (Lost("its worker gave no answer in 7 s", hung=True), Verdict.UNKNOWN, "time-out"),
    ],
)
def test_a_solver_that_dies_or_hangs_costs_its_sample_alone(tiny, tmp_path, monkeypatch, lost, verdict, reason):
    path = export_onnx(tiny.classifier, tmp_path / "model.onnx")
    queries = queries_of(tiny, 0.01, torch.arange(2), one_by_one=False)

    class Dies:
        kind = "processes"

        def results(self, work, units, name, limit):
            assert limit(units[0]) == 60 + marabou.GRACE
            yield 1, work(units[1])
            yield 0, lost

    monkeypatch.setattr(marabou, "executor", lambda _: Dies())
    gone, other = solve_all(path, queries, 60, float("inf"), "m")
    assert gone.verdict is verdict
    assert reason in gone.reason
    assert other.verdict in {Verdict.VERIFIED, Verdict.FALSIFIED}


def test_a_graph_that_marabou_cannot_read_is_refused_with_the_operator(tiny):
    subject = subject_with(
        nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.Softplus(), nn.Linear(6, 3)), tiny.dataset.inputs, 3
    )
    with pytest.raises(IncompatibleError, match="Marabou does not read Softplus"):
        assess("m", entry("linf-box"), budget(0.01), subject)


@pytest.mark.slow
def test_a_time_budget_leaves_unknowns_apart_and_with_a_reason(mlp_subject):
    result = assess("m", entry("linf-box", time_budget=0.01), budget(0.1), first(mlp_subject, 6))
    assert (result.data["verdicts"] == Verdict.UNKNOWN).sum() >= 3
    assert result.metrics["timeouts"] == result.data["timed_out"].sum() >= 3
    assert "time_out" in [c.code for c in result.caveats]


def test_a_model_without_gradients_is_verified_by_the_solver_alone(tiny, tmp_path):
    path = export_onnx(tiny.classifier, tmp_path / "model.onnx")
    forward_only = frozenset({Capability.FORWARD, Capability.ONNX_GRAPH})
    classifier = replace(tiny.classifier, onnx_path=path, capabilities=forward_only)
    verdicts = assess("m", entry("linf-box"), budget(0.02), replace(tiny, classifier=classifier)).data["verdicts"]
    assert torch.isin(verdicts, torch.tensor([int(Verdict.VERIFIED), int(Verdict.FALSIFIED)])).all()


def test_a_graph_that_marabou_reads_differently_proves_nothing():
    """Its parser overlooks the padding of max pooling."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2, stride=2, padding=1), nn.Flatten(), nn.Linear(18, 3)
    )
    result = assess("m", entry("linf-box"), budget(1e-4), subject_with(network, torch.rand(2, 1, 6, 6), 3))
    assert (result.data["verdicts"] == Verdict.ERROR).all()
    assert all(caveat.code == "solver_error" for caveat in result.caveats)


def test_a_solver_leaves_nothing_in_the_current_folder(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx_path = export_onnx(tiny.classifier, tmp_path / "graph" / "model.onnx")
    (query,) = queries_of(tiny, 0.05, torch.tensor([0]), one_by_one=False)
    broken = replace(query, lower=query.upper + 1, upper=query.lower - 1)  # an empty box: Marabou writes the query down
    (answer,) = solve_all(onnx_path.relative_to(tmp_path), [broken], 5.0, float("inf"), "m")
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
    assert answer.index == 0


def test_what_earlier_steps_took_of_a_time_out_the_solver_does_not_have(mlp_subject):
    subject = first(mlp_subject, 3)
    given = entry("cascade", steps=["branch-and-bound", "marabou"], timeout=1e-9)
    result = assess("v", given, budget(0.12), subject)
    left = result.data["verdicts"] == Verdict.UNKNOWN
    assert left.any()
    assert torch.equal(result.data["timed_out"], left)


SCRIPT = """
import torch
from balls import budget, entry, subject_with
from windtunnel.assessments.verification.assess import assess

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
result = assess("v", entry("linf-box", timeout=20), budget(0.01), subject_with(module, torch.rand(4, 1, 2, 2), 2))
print(len(result.data["verdicts"]), "verdicts")
"""


@pytest.mark.slow
def test_a_process_that_used_solvers_ends():
    """Marabou takes SIGTERM, by which multiprocessing ends its processes, as a request to stop solving, and stays."""
    folders = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip() == "4 verdicts"
