"""Random combinations of entries on models whose exact radii are known: the states and the sandwich never lie.

Four models of two or three pixels: the class is the larger one (as a module and as a Python function), a binary head on their sum,
and a label that must be among the two largest of three. Regions: balls of three norms, and a range of brightness.
WINDTUNNEL_EXAMPLES=3000 tries more combinations.
"""

import contextlib
import json
import math
import os
import re
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import example, given, settings
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
from windtunnel.reporting.report.model import Section, Table

N = 12
BRIGHTNESS = Norm("brightness=1")
NORMS = (Norm.LINF, Norm.L2, Norm.L1, BRIGHTNESS)
EPSILONS = (0.05, 0.15, 0.3)
MODELS = ("softmax", "function", "binary", "top-2")
NAMES = {(norm, epsilon): f"{norm.name.lower()}-{epsilon}" for norm in NORMS for epsilon in EPSILONS if epsilon > 0.1}
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
    result = summarise(subject, PerturbationBudget(norm, 0.15), clean, assessments, budget_names=NAMES)
    summary = write_artifacts(result, place.summary, subject, started=0)
    write_json(headline_metrics(summary, clean, assessments), place.metrics)
    return summary


def drawn_at(entry: Entry, norm: Norm, epsilon: float) -> bool:
    if entry.kind is not AssessmentKind.EMPIRICAL_ATTACK or entry.norm is not norm:
        return False
    return entry.epsilon == epsilon or (entry.minimum_norm and (entry.epsilon is None or entry.epsilon >= epsilon))


@dataclass(frozen=True)
class Expected:
    """What is known at one budget, from the planted examples and certificates alone.

    examined: whether a verifier was given a sample. distances: to the nearest planted example, inf for none.
    """

    states: list[SampleState]
    drawn: list[bool]
    examined: bool
    distances: list[float]

    def share(self, *states: SampleState, drawn: bool = True) -> str:
        """The share of the samples in these states, of the union of the draws (of all where there is none), as a percentage."""
        of_all = not (drawn and any(self.drawn))
        chosen = [s in states for s, is_drawn in zip(self.states, self.drawn, strict=True) if is_drawn or of_all]
        return f"{sum(chosen) / len(chosen):.1%}"

    @property
    def worst_case(self) -> str:
        return self.share(SampleState.CERTIFIED, SampleState.SURVIVED) if any(self.drawn) else "-"

    @property
    def certified(self) -> str:
        return self.share(SampleState.CERTIFIED) if self.examined else "-"

    @property
    def range(self) -> tuple[str, str]:
        unbroken = (SampleState.CERTIFIED, SampleState.SURVIVED, SampleState.NOT_ATTACKED)
        return self.share(SampleState.CERTIFIED, drawn=False), self.share(*unbroken, drawn=False)

    @property
    def counts(self) -> dict[str, int]:
        return {state.value: self.states.count(state) for state in SampleState}

    @property
    def n(self) -> int:
        return sum(self.drawn) or N


def length_of(moved: torch.Tensor, norm: Norm, entry: Entry) -> torch.Tensor:
    """The size of changes (n, pixels) under a norm; of what is no change of brightness, infinite under brightness."""
    if norm is BRIGHTNESS:
        is_region = entry.norm is BRIGHTNESS
        return moved.mean(1).abs() if is_region else torch.where((moved == 0).all(1), 0.0, torch.inf)
    return torch.linalg.vector_norm(moved, {Norm.LINF: torch.inf, Norm.L2: 2, Norm.L1: 1}[norm], dim=1)


def expected_at(norm: Norm, epsilon: float, subject: Subject, run: list[Entry], folder) -> Expected:
    certified, drawn, examined = [False] * N, [False] * N, False
    nearest, right = torch.full((N,), torch.inf, dtype=torch.double), subject.clean_correct
    for i, entry in enumerate(run):
        data = read_artifacts(Layout(folder).robustness / f"e{i}").data
        chosen = select(N, entry.count, entry.selection, entry.seed, subject.dataset.targets)
        if entry.kind is AssessmentKind.FORMAL_VERIFICATION:
            if entry.norm is norm and entry.epsilon >= epsilon and not entry.other_function:
                examined = True
                for place, verdict in zip(chosen.tolist(), data["verdicts"].tolist(), strict=True):
                    certified[place] |= verdict == Verdict.VERIFIED
            continue
        moved = (data["perturbed_inputs"] - subject.dataset.inputs[chosen]).double().flatten(1)
        is_example = (
            data["perturbed_predictions"] != subject.dataset.targets[chosen]
        )  # -1 of logits that are not finite, too
        distances = torch.where(is_example, length_of(moved, norm, entry), torch.inf)
        nearest[chosen] = torch.minimum(nearest[chosen], distances)
        for place in chosen.tolist() if drawn_at(entry, norm, epsilon) else ():
            drawn[place] = True
    states = []
    for place in range(N):
        known = {
            SampleState.MISCLASSIFIED: not right[place],
            SampleState.BROKEN: nearest[place] <= epsilon * 1.0001,
            SampleState.CERTIFIED: certified[place],
            SampleState.SURVIVED: drawn[place],
            SampleState.NOT_ATTACKED: True,
        }
        states.append(next(state for state, applies in known.items() if applies))
    return Expected(states, drawn, examined, nearest.tolist())


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


VERIFIED = {"kind": AssessmentKind.FORMAL_VERIFICATION}
# Runs that few random ones are like: (run, seed, places of NaN, model, norm).
CASES = [
    (
        [planted(Norm.LINF, 0.15, 5), planted(Norm.LINF, 0.3, 7, seed=2), planted(Norm.LINF, 0.15, N, **VERIFIED)],
        3,
        {2},
        "softmax",
        Norm.LINF,
    ),
    # Certified at a larger budget, and not in equal shares of the draw and of all samples.
    (
        [
            planted(Norm.LINF, 0.05, 5),
            planted(Norm.LINF, 0.15, N, **VERIFIED),
            planted(Norm.LINF, 0.05, N, skill=0.5, **VERIFIED),
        ],
        4,
        set(),
        "binary",
        Norm.LINF,
    ),
    # The second of two examples of a sample is the nearer one.
    ([planted(Norm.LINF, 0.3, N), planted(Norm.L1, 0.3, N)], 1, set(), "top-2", Norm.L1),
    ([], 3, set(), "binary", BRIGHTNESS),
]


def on_cases(test):
    for case in CASES:
        test = example(*case)(test)
    return test


on_random_runs = given(
    RUNS,
    st.integers(0, 50),
    st.sets(st.integers(0, N - 1), max_size=2),
    st.sampled_from(MODELS),
    st.sampled_from(NORMS),
)


@settings(max_examples=int(os.environ.get("WINDTUNNEL_EXAMPLES", "60")))
@on_cases
@on_random_runs
def test_the_states_partition_the_samples_and_the_truth_lies_between_the_ends(
    tmp_path_factory, run, seed, nan, model, norm
):
    subject, invalid = subject_with(seed, model), torch.zeros(N, dtype=torch.bool)
    invalid[[*nan]] = True
    folder = tmp_path_factory.mktemp("run")
    summary = written(subject, run, invalid, folder, norm)
    layers = layers_of(summary.metrics)
    assert summary.metrics["hard_failures"] == 0  # every entry is honest, so that none contradicts another
    for b, layer in enumerate(layers):
        states, drawn = summary.tensor("sandwich_states")[b], summary.tensor("sandwich_drawn")[b]
        expected = expected_at(layer.norm, layer.epsilon, subject, run, folder)
        assert states.tolist() == [state.code for state in expected.states]
        assert drawn.tolist() == expected.drawn
        # Exactly robust, where the model is finite; no planted radius is within 0.1 % of an epsilon.
        robust = subject.clean_correct & (radius_of(subject, layer.norm) > layer.epsilon) & ~invalid
        certified = states == SampleState.CERTIFIED.code
        assert not (certified & ~robust).any()
        assert not ((states == SampleState.BROKEN.code) & robust).any()
        truth = float(robust.double().mean())
        if layer.certified_all:
            assert layer.certified_all.value <= truth + 1e-9
        assert truth <= layer.robust_accuracy_at_most + 1e-9
        if not layer.n_attacked:
            assert layer.worst_case is None
            continue
        truth = float(robust[drawn].double().mean())
        assert truth <= layer.worst_case.value + 1e-9
        if layer.certified:
            assert layer.certified.value <= truth + 1e-9


def tables_in(blocks) -> list[Table]:
    return [block for block in blocks if isinstance(block, Table)]


def sections_in(sections) -> list[Section]:
    return [each for section in sections for each in (section, *sections_in(section.children))]


@settings(max_examples=int(os.environ.get("WINDTUNNEL_EXAMPLES", "60")) // 10)
@on_cases
@on_random_runs
def test_every_door_gives_the_same_numbers(tmp_path_factory, run, seed, nan, model, norm):
    subject, invalid, folder = (
        subject_with(seed, model),
        torch.zeros(N, dtype=torch.bool),
        tmp_path_factory.mktemp("run"),
    )
    invalid[[*nan]] = True
    summary = written(subject, run, invalid, folder, norm)
    layers = layers_of(summary.metrics)
    at = [expected_at(layer.norm, layer.epsilon, subject, run, folder) for layer in layers]
    first = at[0]
    with contextlib.chdir(folder):
        terminal = CliRunner().invoke(show, [], catch_exceptions=False).output.splitlines()
        answer = json.loads(CliRunner().invoke(show, ["--json"], catch_exceptions=False).output)
        report = build_report(Layout().reports)
        metrics = flatten(read_block(Layout().metrics))
    # The terminal, as a table and as JSON; the table of the report.
    start = next(i for i, line in enumerate(terminal) if line.startswith("budget ")) + 1
    rows = [re.split(r"\s{2,}", line.strip()) for line in terminal[start : start + len(layers)]]
    (table,) = [
        t for section in sections_in(report.sections) for t in tables_in(section.blocks) if "Both bounds" in t.caption
    ]
    for row, of_report, of_json, layer, expected in zip(
        rows, table.rows, answer["summary"]["metrics"]["sandwich"], layers, at, strict=True
    ):
        low, high = expected.range
        assert [row[1].split(" ")[0], row[2].split(" ")[0], row[3]] == [
            expected.certified,
            expected.worst_case,
            str(expected.n),
        ]
        assert row[4:10] == [f"{low} to {high}", *map(str, expected.counts.values())]
        assert [of_report[1].split(" ")[0], of_report[2].split(" ")[0]] == [expected.certified, expected.worst_case]
        assert of_report[3:9] == (str(expected.n), *(str(expected.counts[state]) for state in ROLES))
        assert of_json["states"] == expected.counts
        assert (of_json.get("worst_case_accuracy") is None) == (expected.worst_case == "-")
        # metrics.json, which MLflow and the gate flatten: the global budget, and those with a name.
        for end, share, n in (
            ("worst_case", expected.worst_case, sum(expected.drawn)),
            ("certified", expected.certified, expected.n),
        ):
            for prefix in [end] * (layer is layers[0]) + [f"{end}/{layer.name}"] * bool(layer.name):
                value = metrics.get(f"{prefix}/accuracy")
                assert ("-" if value is None else f"{value:.1%}", metrics.get(f"{prefix}/n")) == (
                    share,
                    n if share != "-" else None,
                )
    # The note of the MLflow run.
    note = describe(metrics, {}, [], [], [], layers[0])
    for end, share in (("worst case", first.worst_case), ("certified", first.certified)):
        assert (f"{end} **{share}" in note) == (share != "-")
    assert first.worst_case == "-" or f"(n {first.n}" in note
    # The report: page one, each sample, and the bars of the sandwich.
    tiles = {tile.label: tile.value for tile in report.front.tiles}
    assert (tiles["worst-case accuracy"], tiles["certified accuracy"]) == (first.worst_case, first.certified)
    assert [row.status for row in report.samples.rows] == [state.words for state in first.states]
    is_broken = [state is SampleState.BROKEN for state in first.states]
    distances = [d if is_known else -1 for d, is_known in zip(first.distances, is_broken, strict=True)]
    shown = [float(row.distance) if row.distance else -1 for row in report.samples.rows]
    assert shown == pytest.approx(distances, rel=1e-3, abs=1e-6)
    scene = sandwich(budget_bars(read_artifacts(Layout(folder).summary)))
    tips = {mark.tip for mark in scene.marks if isinstance(mark, Rect) and mark.tip}
    for layer, expected in zip(layers, at, strict=True):
        for state, count in expected.counts.items():
            assert not count or f"{layer.budget}, {SampleState(state).words}: {count / N:.1%}" in tips
    # The Python API.
    result = wt.read(folder)
    assert result.per_sample["status"].tolist() == [state.value for state in first.states]
    assert result.per_sample["nearest_example"].fillna(-1).tolist() == pytest.approx(distances, rel=1e-3, abs=1e-6)
    for i, entry in enumerate(run):
        data = result[f"e{i}"].data
        broken = subject.clean_correct[select(N, entry.count, entry.selection, entry.seed, subject.dataset.targets)]
        broken = broken & (data["verdicts"] == Verdict.ATTACK_SUCCEEDED)
        assert result.broken(f"e{i}")["index"].tolist() == broken.nonzero().flatten().tolist()
