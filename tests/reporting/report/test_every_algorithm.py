"""A run of every algorithm of the registry builds its report: charts split between pages, rows wrap or are abbreviated."""

import math
from dataclasses import replace

import pytest

import windtunnel
from windtunnel.assessments.catalogue import algorithms
from windtunnel.assessments.figures.plots import Bar, bars
from windtunnel.assessments.figures.scene import Label, Line, Scene, split_scene
from windtunnel.evaluation.sanity.run import registry
from windtunnel.records.artifacts import Artifacts, write_metadata
from windtunnel.records.files import DATA_FILE
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.registry.plugins import families
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.pdf import render_pdf
from windtunnel.reporting.report.sections.sanity import sanity_section

ENTRIES = {
    "attacks": ["fgsm"],
    "queries": {"square": {"library": "torchattacks", "algorithm": "Square", "params": {"n_queries": 5}}},
    "sweeps": {"sweep": {"epsilons": [0, 0.05, 0.1]}},
    "verify": ["crown"],
    "corrupt": {"blur": {"algorithm": "gaussian_blur", "severities": [1], "upsample": 32}},
}


@pytest.mark.parametrize("count", [1, 30, 48, 223, 2000])
def test_a_chart_is_cut_between_its_rows_and_keeps_all_of_them(count):
    rows = [Bar(f"attack {i}", 0.5, "broken", (0.4, 0.6)) for i in range(count)]
    parts = split_scene(bars(rows, "accuracy", "many", reference=(0.9, "clean")), 700)
    labels = [mark.text for part in parts for mark in part.marks if isinstance(mark, Label)]
    assert [text for text in labels if text.startswith("attack")] == [row.label for row in rows]
    assert labels.count("accuracy") == len(parts)
    assert all(part.height <= 700 for part in parts)
    assert len(parts) <= math.ceil(count / 30)
    inside = [0 <= mark.y <= part.height for part in parts for mark in part.marks if isinstance(mark, Label)]
    assert all(inside)


def test_a_slanted_line_keeps_its_slope_where_a_page_ends():
    line = Line(((0.0, 0.0), (100.0, 1400.0)), "broken")
    upper, lower = split_scene(Scene(100, 1400, (line,), ""), 700)
    assert upper.marks[0].points == ((0, 0), (50, 700))
    assert lower.marks[0].points == ((50, 0), (100, 700))


def _run_of_every_algorithm(subject, folder):
    """A small real result of each family, once for every algorithm that the family offers."""
    data = subject.dataset
    result = windtunnel.assess(
        subject.classifier.module, data.inputs[:20], data.targets[:20], budget="Linf 0.1", **ENTRIES
    )
    result.save(folder)
    reports = folder / "reports"
    names = []
    for family in families():
        base = next((a for a in map(result.get, result) if a.metadata.family == family), None)
        for row in algorithms(family):
            name = f"{family}-{row.library}-{row.name}"
            names.append(name)
            source = base or result["fgsm"]
            metadata = source.metadata.model_copy(
                update={
                    "name": name,
                    "family": family,
                    "library": row.library,
                    "algorithm": row.name,
                    "visualisers": (),
                }
            )
            directory = reports / "robustness" / name
            directory.mkdir(parents=True)
            (directory / DATA_FILE).write_bytes((reports / "robustness" / source.name / DATA_FILE).read_bytes())
            write_metadata(Artifacts(name, directory, source.data, metadata), ())
    return reports, names


@pytest.fixture(scope="module")
def everything(linear_subject, tmp_path_factory):
    return _run_of_every_algorithm(linear_subject, tmp_path_factory.mktemp("everything"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_report_of_every_algorithm_is_built(everything):
    reports, names = everything
    assert len(names) == len(algorithms()) > 200
    report = build_report(reports, names=names)
    checks = [
        FindingRecord(id=check.id, title=check.title, severity=Severity.WARN, status=Status.WARN, assessments=tuple(names),
                      reason="seen in " + ", ".join(names), remedy=check.remedy)
        for check in registry().values()
    ]  # fmt: skip
    report = replace(report, sections=(*report.sections, sanity_section(tuple(checks), None)), full=True)
    render_html(report, reports / "report.html")
    render_pdf(report, reports / "report.pdf")
    assert all(name in (reports / "report.html").read_text() for name in names)
    assert (reports / "report.pdf").stat().st_size > 10**5


def test_a_check_that_names_many_assessments_is_abbreviated():
    names = tuple(f"attack-{i}" for i in range(200))
    row = FindingRecord(id="C1", title="t", severity=Severity.WARN, status=Status.WARN, assessments=names)
    table = sanity_section((row,), None).blocks[1]
    assert table.rows[0][-1] == "attack-0, attack-1, attack-2, attack-3, attack-4, attack-5 and 194 more"
