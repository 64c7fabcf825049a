"""`storage.inputs`: the same numbers with the images of all samples, and of a few."""

import copy
import time
from pathlib import Path

import pytest
import torch

from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject
from windtunnel.evaluation.validate import validate
from windtunnel.operations.api.pipeline import assess_subject
from windtunnel.records.artifacts import Artifacts, read_artifacts, write_artifacts
from windtunnel.records.files import file_digest
from windtunnel.records.layout import Layout
from windtunnel.records.storage import DISTANCES, KEPT, keep_images
from windtunnel.registry.plugins import families
from windtunnel.reporting.compare.comparison import compare_assessment
from windtunnel.reporting.compare.runs import Run
from windtunnel.reporting.report.collect import collect
from windtunnel.reporting.view.site import collect as columns
from windtunnel.reporting.view.site import rows_at

N, FEW = 40, 7
PARAMS = {
    "data": {"source": "function", "function": "given:directly", "class_names": 10},
    "model": {"source": "function", "function": "given:directly"},
    "budget": {"norm": "Linf", "epsilon": 0.1},
    "attacks": {
        "fgsm": {"library": "torchattacks", "algorithm": "FGSM"},
        "ddn": {"library": "foolbox", "algorithm": "DDNAttack", "budget": {"norm": "L2", "epsilon": 0.5, "steps": 10}},
    },
    "queries": {
        "evoba": {"algorithm": "EvoBA", "params": {"generation_size": 5, "generations": 8}, "samples": {"n": 12}}
    },
    "sweeps": {"sweep": {"epsilons": [0, 0.05, 0.1]}},
    "verification": {"crown": {"library": "auto-LiRPA", "algorithm": "crown"}},
    "corruptions": {"suite": {"algorithm": "fog", "severities": [1, 3], "upsample": 32}},
}


def _of(subject: Subject, **changes: object) -> Layout:
    """A run of all families on `N` samples, in a folder that stays as long as what is returned."""
    params = validate({**copy.deepcopy(PARAMS), **changes}, "test")
    found = assess_subject(params, subject.subset(torch.arange(N)), None)
    found.place.result = found  # type: ignore[attr-defined]  # else the folder ends with it
    return found.place


@pytest.fixture(scope="module")
def runs(linear_subject: Subject) -> tuple[Layout, Layout]:
    """(with the images of all samples, of a few)."""
    return _of(linear_subject), _of(linear_subject, storage={"inputs": FEW})


def _all(place: Layout) -> dict[str, Artifacts]:
    found = {
        path.parent.relative_to(place.reports).as_posix(): path.parent for path in place.reports.rglob("metadata.json")
    }
    return {name: read_artifacts(path, run_times=False) for name, path in sorted(found.items())}


def test_metrics_and_verdicts_are_equal_for_all_images_and_for_a_few(runs):
    whole, few = map(_all, runs)
    assert whole.keys() == few.keys()
    assert len(whole) == 11
    for name, one in whole.items():
        other = few[name]
        assert one.metrics == other.metrics or name == "sanity", name
        for key, value in one.data.items():
            if key in {"clean_inputs", "perturbed_inputs"} or isinstance(value, dict):
                continue
            assert torch.equal(value.nan_to_num(9.0), other.tensor(key).nan_to_num(9.0)), (name, key)
        kept = other.tensor(KEPT)
        assert len(kept) == FEW
        for key in {"clean_inputs", "perturbed_inputs"} & one.data.keys():
            assert torch.equal(one.tensor(key)[kept].nan_to_num(9.0), other.tensor(key).nan_to_num(9.0)), (name, key)
        assert any(caveat.code == "images_not_kept" for caveat in other.caveats)
    assert file_digest(runs[0].metrics) == file_digest(runs[1].metrics)


def test_the_sanity_checks_find_the_same_and_say_whose_images_they_saw(runs):
    whole, few = (
        {row["id"]: row for row in read_artifacts(place.sanity).metadata.kwargs.extra["checks"]} for place in runs
    )
    assert {i: row["status"] for i, row in whole.items()} == {i: row["status"] for i, row in few.items()}
    told = [i for i, row in few.items() if "samples are kept (storage.inputs)" in row.get("reason", "")]
    assert {"B2", "B3", "E14"} <= set(told)
    assert "fgsm: the images of 7 of 40 samples are kept (storage.inputs), and looked at" in few["B2"]["reason"]
    assert not any("storage.inputs" in row.get("reason", "") for row in whole.values())


def test_a_check_that_forgets_that_images_are_few_is_not_run_rather_than_wrong(runs, linear_subject):
    from windtunnel.evaluation.sanity.check import NotRun
    from windtunnel.evaluation.sanity.evidence import Assessment

    artifacts = read_artifacts(runs[1].robustness / "fgsm")
    with pytest.raises(NotRun, match="the images of 7 of 40"):
        Assessment("fgsm", "attacks", artifacts, torch.arange(N)).tensor("perturbed_inputs")


def test_distances_are_those_of_the_images_that_were_dropped(runs):
    whole, few = map(_all, runs)
    for name in ("robustness/fgsm", "robustness/crown", "robustness/evoba", "summary"):
        for norm, stored in few[name].data[DISTANCES].items():
            assert torch.equal(stored.nan_to_num(-1.0), whole[name].distances(norm).nan_to_num(-1.0)), (name, norm)


def test_report_comparison_and_sample_browser_show_what_was_kept(runs):
    found = collect(runs[1].reports)
    assert not found.problems
    assert found.pictures is not None
    kept = set(read_artifacts(runs[1].summary).kept.tolist())
    assert set(found.pictures.thumbnails) <= kept
    assert set(found.pictures.chosen) <= kept
    assert len(found.pictures.names) == N
    pairs = compare_assessment("fgsm", *(read_artifacts(place.robustness / "fgsm") for place in runs))
    assert (pairs[0].table.gained, pairs[0].table.lost) == (0, 0)
    samples = columns([Run("few", "directory", {}, {}, runs[1].reports)])
    images = rows_at(samples.base, "clean_inputs", 0, N)
    shown = images.flatten(1).isfinite().all(1)
    assert set(shown.nonzero().flatten().tolist()) == kept
    summary = read_artifacts(runs[0].summary)
    assert torch.equal(images[shown], summary.tensor("clean_inputs")[shown])


def test_survivors_of_an_attack_whose_images_were_dropped_are_the_same(linear_subject: Subject, tmp_path: Path):
    from windtunnel.assessments.attacks.assess import assess
    from windtunnel.params.attacks import AttackEntry
    from windtunnel.params.entry import Budget

    subject, budget = linear_subject.subset(torch.arange(N)), Budget(norm="Linf", epsilon=0.1)
    first = AttackEntry(library="torchattacks", algorithm="FGSM")
    second = AttackEntry.model_validate(
        {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 3}, "on": {"survivors_of": ["first"]}}
    )
    results = []
    for name, wanted in (("all", "all"), ("few", FEW)):
        made = keep_images(assess("first", first, budget, subject), wanted)
        prior = write_artifacts(made, tmp_path / name, subject, started=time.time())
        results.append(keep_images(assess("second", second, budget, subject, {"first": prior}), "all"))
    whole, few = results
    assert KEPT not in whole.data
    broken = (whole.data["verdicts"] == 1) & (whole.data["broken_by"] == -1)
    assert 0 < int(broken.sum()) < N
    lost = set(broken.nonzero().flatten().tolist()) - set(prior.kept.tolist())
    assert set(few.data[KEPT].tolist()) == set(range(N)) - lost  # all but those whose image the first had dropped
    assert whole.metrics == few.metrics
    for norm, stored in few.data[DISTANCES].items():
        assert torch.equal(stored, Artifacts("second", tmp_path, whole.data, None).distances(norm))


@pytest.mark.parametrize("value", [0, -3, "some", 1.5, True, None, [3]])
@pytest.mark.parametrize("where", ["storage", "attacks.fgsm.storage"])
def test_a_wrong_number_of_images_is_refused_in_one_line(value, where):
    changed = copy.deepcopy(PARAMS)
    place = changed if where == "storage" else changed["attacks"]["fgsm"]
    place["storage"] = {"inputs": value}
    with pytest.raises(UserError) as caught:
        validate(changed, "params.yaml")
    assert (
        str(caught.value) == f"params.yaml: {where}.inputs: {value!r} is neither 'all' nor a number of samples from 1"
    )


@pytest.mark.parametrize(
    ("storage", "line"),
    [
        ({"inputs": "al"}, "storage.inputs: 'al' is neither 'all' nor a number of samples from 1. Did you mean 'all'?"),
        ({"input": 10}, "storage.input: 'input' is not a key here. Did you mean 'inputs'? Allowed: inputs"),
        (10, "storage: 10 is no map of keys; allowed keys: inputs"),
    ],
)
def test_a_slip_of_the_pen_is_one_line_with_what_was_meant(storage, line):
    with pytest.raises(UserError) as caught:
        validate({**copy.deepcopy(PARAMS), "storage": storage}, "params.yaml")
    assert str(caught.value) == f"params.yaml: {line}"


def test_one_entry_may_keep_other_images_than_the_rest(linear_subject: Subject):
    entries = {"fgsm": {**PARAMS["attacks"]["fgsm"], "storage": {"inputs": "all"}}, "other": PARAMS["attacks"]["fgsm"]}
    nothing = {family: {} for family in families() if family != "attacks"}
    place = _of(linear_subject, storage={"inputs": FEW}, attacks=entries, **nothing)
    assert KEPT not in read_artifacts(place.robustness / "fgsm").data
    assert len(read_artifacts(place.robustness / "other").kept) == FEW


def test_a_file_whose_images_are_not_those_that_it_says_it_kept_is_refused(runs, tmp_path):
    from windtunnel.records.artifacts import check_data

    good = read_artifacts(runs[1].robustness / "fgsm").data
    check_data(good, "here")
    for wrong in (torch.arange(FEW - 1), torch.zeros(FEW, dtype=torch.int64), torch.arange(FEW) + N, torch.rand(FEW)):
        with pytest.raises(UserError, match=r"kept|has clean_inputs of"):
            check_data({**good, KEPT: wrong}, "here")
