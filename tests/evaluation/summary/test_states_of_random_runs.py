"""Random combinations of entries on models whose exact radii are known: the states and the sandwich never lie.

Four models of two or three pixels: the class is the larger one (as a module and as a Python function), a binary head on their sum,
and a label that must be among the two largest of three. Regions: balls of three norms, and a range of brightness.
WINDTUNNEL_EXAMPLES=3000 tries more combinations.
"""

import json
import math
import os
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import windtunnel as wt
from windtunnel.assessments.figures.scene import Rect
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.heads import Headed, head_of
from windtunnel.cli.show import show
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import (
    SMOOTHED_MODEL,
    Algorithm,
    AssessmentKind,
    Capability,
    Norm,
    PerturbationBudget,
    PerturbationDistribution,
    Randomness,
    Semantics,
    ThreatModel,
    Verdict,
)
from windtunnel.core.criterion import SOFTMAX, Criterion
from windtunnel.core.dataset import Dataset, select
from windtunnel.core.distances import distance
from windtunnel.core.sample_states import SampleState
from windtunnel.core.subject import Subject, subject_of
from windtunnel.core.transformations import PARAMETERS
from windtunnel.evaluation.gate.decide import flatten
from windtunnel.evaluation.summary.headline import headline_metrics
from windtunnel.evaluation.summary.sandwich_figure import ROLES, budget_bars, sandwich
from windtunnel.evaluation.summary.security import security_curves, write_curves
from windtunnel.evaluation.summary.summarise import summarise
from windtunnel.operations.tracking.describe import describe
from windtunnel.params.model import Model
from windtunnel.records.artifacts import Artifacts, base_data, base_kwargs, read_artifacts, write_artifacts
from windtunnel.records.files import read_block, write_json
from windtunnel.records.layout import Layout
from windtunnel.records.result import AssessmentResult
from windtunnel.records.sandwich import layers_of
from windtunnel.records.storage import distances_of
from windtunnel.reporting.report.build import build_report

N = 12
BRIGHTNESS = Norm("brightness=1")
NORMS = (Norm.LINF, Norm.L2, Norm.L1, BRIGHTNESS)
EPSILONS = (0.05, 0.15, 0.3)
MODELS = ("softmax", "function", "binary", "top-2")
PAST = 1.0005  # a planted example lies this much beyond the boundary, in radii
STEEP, THRESHOLD = 8.0, 0.6  # of the binary head
BOUNDARY = 1.0 + math.log(THRESHOLD / (1 - THRESHOLD)) / STEEP  # the sum of the pixels at which its answer changes


class Sum(nn.Module):
    """One output: the sum of the pixels less 1, times STEEP."""

    def forward(self, x):
        return STEEP * (x.flatten(1).sum(1, keepdim=True) - 1)


def softmax_of(batch: np.ndarray) -> np.ndarray:
    powers = np.exp(STEEP * batch.reshape(len(batch), -1))
    return powers / powers.sum(1, keepdims=True)


def classifier_of(model: str) -> Classifier:
    facts: tuple[nn.Module, int, Criterion] = {
        "softmax": lambda: (nn.Flatten(), 2, SOFTMAX),
        "function": lambda: (PredictFunction(softmax_of), 2, SOFTMAX),
        "binary": lambda: (Headed(Sum(), BINARY), 2, Criterion("binary", threshold=THRESHOLD)),
        "top-2": lambda: (nn.Flatten(), 3, Criterion("top_k", k=2)),
    }[model]()
    module, classes, criterion = facts
    shape = (1, 1, 3 if model == "top-2" else 2)
    forward = frozenset({Capability.FORWARD})
    return Classifier(module, classes, shape, forward, "digest", "test", criterion=criterion)


BINARY = head_of(
    Model(source="state_dict", path="net.pt", factory="nets:Net", head={"kind": "binary", "threshold": THRESHOLD})
)


def across(subject: Subject, norm: Norm) -> torch.Tensor:
    """The nearest points of the boundary of every sample that is right, moved beyond it by a little; float32 (N, 1, 1, pixels)."""
    x, y = subject.dataset.inputs.double().flatten(1), subject.dataset.targets
    if subject.classifier.criterion.head == "binary":
        return (x + PAST * (BOUNDARY - x.sum(1, keepdim=True)) / 2).float().view_as(subject.dataset.inputs)
    own = x.gather(1, y[:, None]).squeeze(1)
    others = x.scatter(1, y[:, None], torch.inf).sort(1).values[:, :-1]
    least, level = others[:, 0], (own + others[:, 0]) / 2  # at which the label and the others meet
    if x.shape[1] == 3:  # both others must pass it
        between = others[:, 1]
        is_met = (level <= between) | (norm is Norm.LINF)
        level = torch.where(is_met, level, between if norm is Norm.L1 else x.mean(1))
    beyond = (PAST - 1) * (own - least)
    moved = torch.maximum(x, (level + beyond)[:, None]).scatter(1, y[:, None], (level - beyond)[:, None])
    return moved.float().view_as(subject.dataset.inputs)


def radius_of(subject: Subject, norm: Norm) -> torch.Tensor:
    """The exact distance of every sample that is right from the nearest input that is not, within 0.1 %; (N,)."""
    if norm is BRIGHTNESS:
        if subject.classifier.criterion.head != "binary":
            return torch.full((N,), torch.inf)[: len(subject.dataset)]  # the order of the pixels stays
        return (subject.dataset.inputs.flatten(1).double().sum(1) - BOUNDARY).abs() / 2
    return distance(norm, across(subject, norm), subject.dataset.inputs).double() / (1 + 2 * (PAST - 1))


@dataclass(frozen=True)
class Entry:
    """An entry to plant: `skill` is the share of the breakable samples that an attack breaks, or of the robust ones verified."""

    kind: AssessmentKind
    norm: Norm
    epsilon: float | None
    minimum_norm: bool
    count: int
    selection: str
    skill: float
    seed: int
    other_function: bool


def in_a_region(entry: Entry) -> Entry:
    return replace(entry, epsilon=entry.epsilon or 0.15, minimum_norm=False) if entry.norm is BRIGHTNESS else entry


def entries(kind):
    built = st.builds(
        Entry,
        kind=st.just(kind),
        norm=st.sampled_from(NORMS),
        epsilon=st.sampled_from(EPSILONS if kind is AssessmentKind.FORMAL_VERIFICATION else (*EPSILONS, None)),
        minimum_norm=st.booleans() if kind is AssessmentKind.EMPIRICAL_ATTACK else st.just(False),
        count=st.integers(1, N),
        selection=st.sampled_from(("first", "random", "stratified")),
        skill=st.sampled_from((0.0, 0.5, 1.0)),
        seed=st.integers(0, 99),
        other_function=st.booleans() if kind is AssessmentKind.FORMAL_VERIFICATION else st.just(False),
    )
    return built.map(in_a_region)


RUNS = st.lists(
    st.one_of(entries(AssessmentKind.EMPIRICAL_ATTACK), entries(AssessmentKind.FORMAL_VERIFICATION)), max_size=5
)


def subject_with(seed: int, model: str = "softmax") -> Subject:
    """N samples, some misclassified, no pair of pixels equal, none that any brightness of EPSILONS clips."""
    generator, classifier = torch.Generator().manual_seed(seed), classifier_of(model)
    inputs = 0.3 + 0.4 * torch.rand(N, *classifier.input_shape, generator=generator)
    targets = classifier.predict(inputs)
    wrong = torch.rand(N, generator=generator) < 0.2
    targets = torch.where(wrong, classifier.logits(inputs).argmin(1), targets)
    names = tuple(f"class {k}" for k in range(classifier.num_classes))
    return subject_of(classifier, Dataset(inputs, targets, tuple(f"s{i}" for i in range(N)), names))


def write(subject: Subject, entry: Entry, name: str, invalid: torch.Tensor, folder) -> Artifacts:
    """The artifacts that an honest entry would leave; `invalid`: (N,) bool, samples whose logits an attack makes NaN."""
    generator = torch.Generator().manual_seed(entry.seed)
    chosen = select(N, entry.count, entry.selection, entry.seed, subject.dataset.targets)
    mine = subject.subset(chosen)
    if len(chosen) < N:
        facts = {"of": N, "n": len(chosen), "selection": entry.selection}
        mine = replace(mine, dataset=replace(mine.dataset, chosen=facts))
    n, skilled = len(chosen), torch.rand(len(chosen), generator=generator) < entry.skill
    radius, right = radius_of(mine, entry.norm), mine.clean_correct
    reach = torch.inf if entry.epsilon is None else entry.epsilon
    families = frozenset()
    if entry.kind is AssessmentKind.EMPIRICAL_ATTACK:
        inputs = mine.dataset.inputs.clone()
        broken = skilled & right & (radius * 1.001 < reach)
        inputs[broken] = across(mine, entry.norm)[broken]
        predictions = mine.classifier.predict(inputs, mine.dataset.targets)
        not_finite = invalid[chosen] & right
        predictions[not_finite] = -1
        verdicts = torch.where(
            predictions != mine.dataset.targets, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED)
        )
        data = {**base_data(mine, verdicts), "perturbed_inputs": inputs, "perturbed_predictions": predictions}
        if entry.norm is BRIGHTNESS:
            data[PARAMETERS] = {"brightness": (inputs - mine.dataset.inputs).flatten(1).mean(1)}
        data["perturbation_distance"] = distances_of(data, entry.norm)
    else:
        verified = skilled & right & (radius > reach * 1.001) & ~invalid[chosen]
        if entry.other_function:
            verified = torch.ones(n, dtype=torch.bool)
            families = frozenset({SMOOTHED_MODEL})
        data = base_data(mine, torch.where(verified, int(Verdict.VERIFIED), int(Verdict.UNKNOWN)))
    row = Algorithm("torchattacks", "made", entry.kind, ThreatModel.WHITE_BOX, entry.norm, families,
                    Randomness.DETERMINISTIC, frozenset(), entry.minimum_norm)  # fmt: skip
    semantics = Semantics(row, PerturbationBudget(entry.norm, entry.epsilon))
    result = AssessmentResult(
        name, semantics, data, {"clean_accuracy": 0.5}, kwargs=base_kwargs(mine), family="attacks"
    )
    return write_artifacts(result, folder / name, mine, started=time.time())


def written(subject: Subject, run: list[Entry], invalid: torch.Tensor, folder, norm: Norm = Norm.LINF) -> Artifacts:
    place = Layout(folder)
    row = Algorithm("windtunnel", "identity", AssessmentKind.STATISTICAL_SAMPLING, ThreatModel.NOT_APPLICABLE, None, frozenset(),
                    Randomness.DETERMINISTIC, frozenset())  # fmt: skip
    verdicts = torch.where(subject.clean_correct, 7, 8)
    result = AssessmentResult("clean", Semantics(row, PerturbationDistribution("identity", 0)), base_data(subject, verdicts),
                              {"clean_accuracy": float(subject.clean_correct.double().mean())}, kwargs=base_kwargs(subject))  # fmt: skip
    clean = write_artifacts(result, place.clean, subject, started=0)
    assessments = [write(subject, entry, f"e{i}", invalid, place.robustness) for i, entry in enumerate(run)]
    write_curves(security_curves(assessments), place.summary)
    summary = write_artifacts(
        summarise(subject, PerturbationBudget(norm, 0.15), clean, assessments), place.summary, subject, started=0
    )
    write_json(headline_metrics(summary, clean, assessments), place.metrics)
    return summary


def drawn_at(entry: Entry, norm: Norm, epsilon: float) -> bool:
    if entry.kind is not AssessmentKind.EMPIRICAL_ATTACK or entry.norm is not norm:
        return False
    return entry.epsilon == epsilon or (entry.minimum_norm and (entry.epsilon is None or entry.epsilon >= epsilon))


@settings(max_examples=int(os.environ.get("WINDTUNNEL_EXAMPLES", "60")))
@given(
    RUNS,
    st.integers(0, 50),
    st.sets(st.integers(0, N - 1), max_size=2),
    st.sampled_from(MODELS),
    st.sampled_from(NORMS),
)
def test_the_states_partition_the_samples_and_the_truth_lies_between_the_ends(
    tmp_path_factory, run, seed, nan, model, norm
):
    subject, invalid = subject_with(seed, model), torch.zeros(N, dtype=torch.bool)
    invalid[[*nan]] = True
    summary = written(subject, run, invalid, tmp_path_factory.mktemp("run"), norm)
    layers = layers_of(summary.metrics)
    assert summary.metrics["hard_failures"] == 0  # every entry is honest, so that none contradicts another
    for b, layer in enumerate(layers):
        states, drawn = summary.tensor("sandwich_states")[b], summary.tensor("sandwich_drawn")[b]
        assert sum(layer.states.values()) == N
        assert layer.states == {state.value: int((states == state.code).sum()) for state in SampleState}
        expected = torch.zeros(N, dtype=torch.bool)
        for entry in run:
            if drawn_at(entry, layer.norm, layer.epsilon):
                expected[select(N, entry.count, entry.selection, entry.seed, subject.dataset.targets)] = True
        assert torch.equal(drawn, expected)
        # Exactly robust, where the model is finite; no planted radius is within 0.1 % of an epsilon.
        robust = subject.clean_correct & (radius_of(subject, layer.norm) > layer.epsilon) & ~invalid
        certified = states == SampleState.CERTIFIED.code
        assert not (certified & ~robust).any()
        assert not ((states == SampleState.BROKEN.code) & robust).any()
        assert ((states == SampleState.MISCLASSIFIED.code) == ~subject.clean_correct).all()
        assert not ((states == SampleState.SURVIVED.code) & ~drawn).any()
        assert not ((states == SampleState.NOT_ATTACKED.code) & drawn).any()
        truth = float(robust.double().mean())
        if layer.certified_all:
            assert layer.certified_all.value <= truth + 1e-9
        assert truth <= layer.robust_accuracy_at_most + 1e-9
        if not layer.n_attacked:
            assert layer.worst_case is None
            continue
        assert layer.n_attacked == int(drawn.sum())
        truth = float(robust[drawn].double().mean())
        assert truth <= layer.worst_case.value + 1e-9
        if layer.certified:
            assert layer.certified.value <= truth + 1e-9


def planted(norm, epsilon, count, **facts):
    given_facts = {
        "minimum_norm": False,
        "selection": "random",
        "skill": 1.0,
        "seed": 1,
        "other_function": False,
        **facts,
    }
    return Entry(facts.pop("kind", AssessmentKind.EMPIRICAL_ATTACK), norm, epsilon, count=count, **{
        key: value for key, value in given_facts.items() if key != "kind"
    })  # fmt: skip


@pytest.mark.parametrize(
    ("count", "model", "norm"),
    [(5, "softmax", Norm.LINF), (N, "function", Norm.L2), (7, "top-2", Norm.L1), (N, "binary", BRIGHTNESS)],
)
def test_every_door_gives_the_same_numbers(tmp_path, monkeypatch, count, model, norm):
    run = [
        planted(norm, 0.15, count),
        planted(norm, 0.3, 7, seed=2),
        planted(norm, 0.15, N, kind=AssessmentKind.FORMAL_VERIFICATION, skill=0.5),
    ]
    summary = written(subject_with(3, model), run, torch.zeros(N, dtype=torch.bool), tmp_path, norm)
    monkeypatch.chdir(tmp_path)
    layer = layers_of(summary.metrics)[0]
    assert layer.n_attacked == count
    # The terminal, as a table and as JSON.
    text = CliRunner().invoke(show, [], catch_exceptions=False).output
    row = next(line for line in text.splitlines() if "the global budget" in line)
    for number in (layer.worst_case, layer.certified, layer.n_attacked, *layer.states.values()):
        assert str(number) in row
    answer = json.loads(CliRunner().invoke(show, ["--json"], catch_exceptions=False).output)
    assert answer["summary"]["metrics"]["sandwich"][0]["states"] == layer.states
    # metrics.json, which MLflow and the gate flatten, and the note of the MLflow run.
    metrics = flatten(read_block(Layout().metrics))
    assert metrics["worst_case/accuracy"] == layer.worst_case_accuracy
    assert metrics["certified/accuracy"] == layer.certified_accuracy
    assert metrics["certified/accuracy_all"] == layer.certified_accuracy_all
    assert (metrics["worst_case/n"], metrics["clean/n"]) == (count, N)
    note = describe(metrics, {}, [], [], [], layer)
    drawn = f"{count} of {N}" if count < N else str(N)
    assert f"worst case **{layer.worst_case}** (n {drawn}" in note
    # The report.
    report = build_report(Layout().reports)
    tiles = {tile.label: tile.value for tile in report.front.tiles}
    assert tiles["worst-case accuracy"] == f"{layer.worst_case_accuracy:.1%}"
    assert tiles["certified accuracy"] == f"{layer.certified_accuracy:.1%}"
    assert f"{layer.robust_accuracy_at_most:.1%}" in report.front.statement
    words = [row.status for row in report.samples.rows]
    assert {state.value: words.count(state.words) for state in SampleState} == layer.states
    scene = sandwich(budget_bars(read_artifacts(Layout().summary)))
    tips = {
        mark.colour: mark.tip for mark in scene.marks if isinstance(mark, Rect) and mark.tip.startswith(layer.budget)
    }
    for state, role in ROLES.items():
        if layer.states[state]:
            assert f"{layer.states[state] / N:.1%}" in tips[role]
    # The Python API.
    result = wt.read(tmp_path)
    counts = result.per_sample["status"].value_counts()
    assert {state.value: int(counts.get(state.value, 0)) for state in SampleState} == layer.states
    assert result.metrics["worst_case/accuracy"] == layer.worst_case_accuracy
    assert len(result.broken("e0")) <= layer.states["broken"]
