"""Show robust accuracy at each budget and against epsilon: attacked from above, certified from below."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.evaluation.summary.sandwich_figure import ROLES
from windtunnel.evaluation.summary.security_figure import security_charts
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Chart, Table
from windtunnel.reporting.report.phrases import listed
from windtunnel.reporting.report.sections.statement import layers


def budgets_table(inputs: ReportInputs) -> Table:
    """Tabulate both ends of the sandwich and the states of all samples at each budget, and who set them."""
    rows = tuple(
        (
            layer.budget, str(layer.certified or "-"), str(layer.worst_case or "-"), str(layer.n_attacked),
            *(str(layer.states.get(state, "-")) for state in ROLES),
            listed([*dict.fromkeys([*layer.attacked_by, *layer.certified_by])], 6),
        )
        for layer in layers(inputs.summary)
    )  # fmt: skip
    header = ("budget", "certified", "worst case", "n", *(state.words for state in ROLES), "set by")
    title = "Both bounds of robust accuracy at each budget, over the n attacked samples, and the states of all samples"
    return Table(title, header, rows)


def known_against_epsilon(inputs: ReportInputs) -> Iterator[Block]:
    """Per norm, what is known against epsilon: attacked from above, certified from below, and the ends of the sandwich."""
    n = len(inputs.base.sample_names) if inputs.base else 0
    for norm, chart in security_charts(inputs.curves, layers(inputs.summary), n):
        yield Chart(chart, f"Robust accuracy against epsilon, {norm}")
