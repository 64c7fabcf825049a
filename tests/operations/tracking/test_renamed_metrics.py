"""A metric that has another name today is logged under both for one release."""

import pytest

from tests.operations.tracking.test_track import project, write_state  # noqa: F401
from windtunnel.operations.tracking import state
from windtunnel.registry.plugins import families

# The headline metrics of every family; a name that goes must be in RENAMED_METRICS until the next release.
PUBLIC = set(
    "adversarial_accuracy attack_success_rate two_phase_accuracy corrupted_accuracy mce mean_corruption_error relative_mce "
    "laga lags lara lars lga llna_generation llna_reconstruction lra queries_succ_mean area_under_curve "
    "median_critical_epsilon average_certified_radius average_certified_radius_at_least certified_accuracy error_rate "
    "falsified_rate unknown_rate verified_rate".split()
)


def test_a_headline_metric_that_is_gone_is_logged_under_its_former_name():
    todays = {metric for family in families().values() for metric in family.headline}
    assert {state.RENAMED_METRICS.get(name, name) for name in PUBLIC} <= todays
    assert not todays & state.RENAMED_METRICS.keys()


@pytest.mark.usefixtures("project")
def test_a_renamed_metric_is_logged_twice_and_a_tag_says_so(monkeypatch):
    monkeypatch.setattr(state, "RENAMED_METRICS", {"precision_before": "accuracy", "worst/acc": "worst_case/accuracy"})
    write_state("0.1", 0.6)
    read = state.read_state()
    assert read.metrics["worst/acc"] == read.metrics["worst_case/accuracy"]
    assert read.children[0].metrics["precision_before"] == read.children[0].metrics["accuracy"]
    assert read.tags["windtunnel.deprecated.worst/acc"] == "worst/acc is worst_case/accuracy today"
