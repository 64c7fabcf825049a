"""A rate is shown with its interval, region and number of samples."""

from tests.made import content
from windtunnel.records.basis import Basis, basis_of, stated
from windtunnel.records.metadata import Metadata, Rate
from windtunnel.records.sandwich import DrawRecord, Layer

FIRST = (DrawRecord(name="pgd", n=5, selection="first"),)


def layer(**changes: object) -> Layer:
    states = {"survived": 5, "not_attacked": 55}
    return Layer(
        **{"norm": "Linf", "epsilon": 8 / 255, "n": 60, "n_attacked": 5, "n_examined": 0, "states": states, **changes}
    )


def test_a_rate_over_a_part_of_the_samples_gives_that_part_and_how_it_was_drawn():
    rate = Rate(0.8, 0.376, 0.964)
    assert stated(rate, Basis.of_layer(layer())) == "80.0% [37.6%, 96.4%] (Linf 8/255, n 5 of 60)"
    by_first = str(Basis.of_layer(layer(draws=FIRST)))
    assert by_first == "Linf 8/255, n 5 of 60, the first samples, no unbiased estimate"
    assert str(Basis.of_layer(layer(n_attacked=0))) == "Linf 8/255, n 60"
    assert stated(Rate(0.5, None, None), Basis()) == "50.0%"


def test_each_metric_of_a_summary_is_of_its_own_samples():
    metrics = {"n_samples": 60, "sandwich": [layer().model_dump(mode="json")]}
    summary = Metadata.model_validate(content(name="summary", metrics=metrics))
    of = {
        key: str(basis_of(summary, key)) for key in ("worst_case_accuracy", "certified_accuracy_all", "clean_accuracy")
    }
    assert of == {
        "worst_case_accuracy": "Linf 8/255, n 5 of 60", "certified_accuracy_all": "Linf 8/255, n 60", "clean_accuracy": "n 60",
    }  # fmt: skip


def test_an_attack_without_bound_says_so():
    region = {"norm": "L0", "epsilon": None}
    attack = content(metrics={"n_samples": 10}, semantics={"perturbation": region})
    assert str(basis_of(Metadata.model_validate({**attack, "family": "queries"}), "x")) == "L0 without bound, n 10"
