"""The PDF as its readers and their tools see it: text, fonts, links, bookmarks, repeated headers, size."""

import shutil
import subprocess

import pypdf
import pytest

from tests.reporting.report.conftest import edit, metrics_of
from windtunnel.params.outcome import Report as Options
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.model import Table
from windtunnel.reporting.report.pdf import render_pdf
from windtunnel.reporting.report.pdf_parts import table_parts


@pytest.fixture
def pdf(reports):
    render_pdf(build_report(reports, Options(title="Of two sweeps")), reports / "report.pdf")
    return reports / "report.pdf"


def test_every_headline_number_is_in_the_text_as_in_metadata(reports, pdf):
    if not shutil.which("pdftotext"):
        pytest.skip("pdftotext is not installed")
    text = subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True).stdout
    summary = metrics_of(reports / "summary")
    for key in ("clean_accuracy", "worst_case_accuracy"):
        for value in (summary[key], summary[f"{key}_ci_low"], summary[f"{key}_ci_high"]):
            assert f"{value:.1%}" in text
    for name in ("fgsm", "pair"):
        metrics = metrics_of(reports / "robustness" / name)
        assert f"{metrics['area_under_curve']:.4g}" in text
        assert all(word in text for word in metrics["verdict"].split())


def test_it_has_metadata_bookmarks_and_links_to_every_section(pdf):
    reader = pypdf.PdfReader(pdf)
    assert reader.metadata.title == "Of two sweeps"
    assert reader.metadata.author == "windtunnel"
    titles = [item.title for item in reader.outline if not isinstance(item, list)]
    assert titles[0].endswith("What was tested")
    assert titles[-1].endswith("Glossary")
    links = [a for a in reader.pages[1]["/Annots"] if "/Dest" in a.get_object() or "/A" in a.get_object()]
    assert len(links) >= len(titles)


def test_every_font_is_embedded(pdf):
    for page in pypdf.PdfReader(pdf).pages:
        for font in page["/Resources"]["/Font"].values():
            described = font.get_object()["/FontDescriptor"].get_object()
            assert "/FontFile2" in described


def test_it_is_small_and_its_curves_are_vectors(pdf):
    assert pdf.stat().st_size < 5e6
    reader = pypdf.PdfReader(pdf)
    pages = [p.extract_text() for p in reader.pages]
    curve = next(i for i, text in enumerate(pages) if "Degradation curve" in text)
    assert "broken here or before" in pages[curve]  # the words of the chart are text, not pixels


def test_a_table_over_several_pages_repeats_its_header(reports):
    def grow(metadata):
        metadata["metrics"] |= {f"metric_{i:03d}": i for i in range(150)}

    edit(reports / "robustness" / "fgsm" / "metadata.json", grow)
    render_pdf(build_report(reports, Options(layout="full")), reports / "report.pdf")
    pages = [p.extract_text() for p in pypdf.PdfReader(reports / "report.pdf").pages]
    with_metrics = [text for text in pages if "metric_0" in text or "metric_1" in text]
    assert len(with_metrics) >= 3
    assert all("95 % interval" in text for text in with_metrics)


def test_no_table_is_wider_than_the_page():
    header = tuple(f"a heading of {i} words" for i in range(9))
    rows = tuple(tuple(f"value {j} of a row with {'long ' * j}words" for j in range(9)) for _ in range(3))
    for table in (Table("wide", header, rows), Table("digest", ("what", "value"), (("digest", "f" * 64),))):
        drawn = table_parts(table)[2]
        assert drawn.wrap(1000, 1000)[0] <= 500
    assert table_parts(Table("empty", header, ())) == []
