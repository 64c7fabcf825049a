"""A section per question: a table of the assessments that answer it, the charts that compare them, what limits them.

Which question a family's assessments answer, and by which columns, its class says. An assessment is a row of the table;
its details are for who searches.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from windtunnel.assessments.figures.plots import HALF
from windtunnel.core.contracts import ThreatModel
from windtunnel.evaluation.summary.meanings import reported_of
from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import Metrics
from windtunnel.registry.reported import BROKEN, CONFIDENCE, COST, VERIFIED, Column, Question, Reported
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Chart, Section, Table, Text, guarded
from windtunnel.reporting.report.phrases import number, percent, region, region_words, short
from windtunnel.reporting.report.sections.assessment import assessment_section as details
from windtunnel.reporting.report.sections.assessment import essential_blocks, limits_table
from windtunnel.reporting.report.sections.compared import certificate_blocks, damage_blocks
from windtunnel.reporting.report.sections.side_by_side import side_by_side_blocks
from windtunnel.reporting.report.sections.statement import layers

_COMPARED = {BROKEN: damage_blocks, VERIFIED: certificate_blocks}
_LAST = {BROKEN: side_by_side_blocks}


def reported(artifacts: Artifacts) -> Reported:
    """Return the report record of an assessment."""
    return reported_of(artifacts.metadata.family, artifacts.kind)


def show(column: Column, artifacts: Artifacts, confidence: float | None = None) -> str:
    """Return the metric of one assessment as text; `-` where it has none. `confidence`: of what it broke, in the wrong answer."""
    metrics = artifacts.metrics
    if column.metric == COST:
        return _cost(metrics)
    if column.metric == CONFIDENCE:
        return "-" if confidence is None else f"{confidence:.1%}"
    if column.metric not in metrics:
        return "-"
    if column.form == "rate":
        return percent(metrics, column.metric)
    if column.form == "share":
        return f"{number(metrics, column.metric):.1%}"
    value = metrics[column.metric]
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{number(metrics, column.metric):.4g}" if plain else short(value)


def _cost(metrics: Metrics) -> str:
    if "queries_succ_median" in metrics:
        return f"{number(metrics, 'queries_succ_median'):.0f} queries (median)"
    if "mean_forward_passes" not in metrics:
        return "-"
    forward, backward = number(metrics, "mean_forward_passes"), number(metrics, "mean_backward_passes")
    return f"{forward:.0f} + {backward:.0f} passes" if backward else f"{forward:.0f} passes"


def family_sections(inputs: ReportInputs, options: Options) -> Iterator[Section]:
    """Yield the section of each question that an assessment answers."""
    answers = [(reported(a).question, a) for a in inputs.assessments]
    for question in sorted({question for question, _ in answers}, key=lambda q: (q.order, q.words)):
        mine = [a for answered, a in answers if answered == question]
        yield guarded(question.words, partial(_section, question, mine, inputs, options))


def _section(question: Question, mine: Sequence[Artifacts], inputs: ReportInputs, options: Options) -> Section:
    blocks: list[Block] = [Text(question.note), *_overview(mine, inputs)]
    if compared := question.compared or _COMPARED.get(question):
        blocks += compared(mine, inputs)
    essential = [block for a in mine for block in essential_blocks(a, inputs)]
    # Charts first: two narrow ones stand beside each other, which a grid between them would forbid.
    blocks += sorted(essential, key=lambda block: block.scene.width > HALF if isinstance(block, Chart) else 2)
    if last := question.last or _LAST.get(question):
        blocks += last(inputs, options)
    blocks += limits_table(mine)
    children = tuple(guarded(a.name, partial(details, a, inputs, options)) for a in mine)
    return Section(question.words, tuple(blocks), children)


def _overview(mine: Sequence[Artifacts], inputs: ReportInputs) -> Iterator[Block]:
    records = [reported(a) for a in mine]
    every = dict.fromkeys(column for record in records for column in record.columns)
    columns = [c for c in every if any(show(c, a, inputs.confidence.get(a.name)) != "-" for a in mine)]
    header = ("assessment", "algorithm", "region", "n", *(c.words for c in columns))
    rows = []
    for a in sorted(mine, key=partial(_place, inputs)):
        measured = (show(c, a, inputs.confidence.get(a.name)) for c in columns)
        rows.append((a.name, _algorithm(a), region_words(a), str(len(a.sample_names)), *measured))
    yield Table("The assessments, grouped by budget", header, tuple(rows))
    if means := [c.means for c in columns if c.means]:
        yield Text("; ".join(means) + ".")
    further = dict.fromkeys(column for record in records for column in record.beside)
    if beside := [c for c in further if any(c.metric in a.metrics for a in mine)]:
        cells = tuple((a.name, *(show(c, a) for c in beside)) for a in mine)
        caption = "Samples, cost and the conventional rates behind these numbers"
        yield Table(caption, ("assessment", *(c.words for c in beside)), cells)
        yield Text("; ".join(c.means for c in beside if c.means) + ".")
    if any(c.metric == COST for c in columns):
        yield Text(
            "Cost: forward + backward passes of the model for a sample, or queries per successful attack. Confidence when "
            "wrong: the median softmax of the wrong class over the broken samples."
        )


def _place(inputs: ReportInputs, artifacts: Artifacts) -> int:
    """Return the place of an assessment's budget among those of the sandwich; last where it has none."""
    budgets, where = [(layer.norm, layer.epsilon) for layer in layers(inputs.summary)], region(artifacts)
    mine = (where.norm, where.epsilon)
    return budgets.index(mine) if mine in budgets and not where.around else len(budgets)


def _algorithm(artifacts: Artifacts) -> str:
    ran = artifacts.metadata
    access = {ThreatModel.BLACK_BOX_SCORE: ", sees scores", ThreatModel.BLACK_BOX_DECISION: ", sees predictions"}
    return f"{ran.library} {ran.algorithm}{access.get(ran.semantics.threat_model, '')}"
