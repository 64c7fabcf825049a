"""The PDF as its readers and their tools see it: text, fonts, links, bookmarks, repeated headers, size."""

import io
import re
import shutil
import subprocess

import pypdf
import pytest
from PIL import Image

from tests.reporting.report.conftest import edit, metrics_of
from windtunnel.assessments.figures.pictures import Picture
from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.files import write_json
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.model import Table
from windtunnel.reporting.report.pdf import _picture, render_pdf, table_parts


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
        assert f"{metrics_of(reports / 'robustness' / name)['adversarial_accuracy']:.1%}" in text


def test_it_has_metadata_bookmarks_and_links_to_every_section(pdf):
    reader = pypdf.PdfReader(pdf)
    assert reader.metadata.title == "Of two sweeps"
    assert reader.metadata.author == "windtunnel"
    titles = [item.title for item in reader.outline if not isinstance(item, list)]
    assert titles[0].endswith("How accurate is it on clean inputs?")
    assert titles[-1].endswith("Glossary")
    annotations = [a for page in reader.pages if "/Annots" in page for a in page["/Annots"]]  # contents may span pages
    links = [a for a in annotations if "/Dest" in a.get_object() or "/A" in a.get_object()]
    assert len(links) >= len(titles)
    assert re.search(rf"Glossary\s+{len(reader.pages)}\b", reader.pages[-1].extract_text())  # at the foot


def test_a_long_title_is_cut_between_words_in_the_footer(reports):
    render_pdf(build_report(reports, Options(title="Robustness of several classifiers")), reports / "report.pdf")
    footer = pypdf.PdfReader(reports / "report.pdf").pages[0].extract_text()
    (line,) = re.findall(r"Robustness of several classifiers: .*", footer)
    assert line.rstrip(" 1").endswith(" ...")


def test_a_budget_under_a_picture_wraps_at_its_spaces():
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    _, text = _picture(Picture(file.getvalue(), "sample", "Linf\xa0≤\xa016/255"), 40)
    assert text.text == "Linf ≤ 16/255"


def test_every_font_is_embedded(pdf):
    for page in pypdf.PdfReader(pdf).pages:
        for font in page["/Resources"]["/Font"].values():
            described = font.get_object()["/FontDescriptor"].get_object()
            assert "/FontFile2" in described


def test_it_is_small_and_its_curves_are_vectors(pdf):
    assert pdf.stat().st_size < 5e6
    reader = pypdf.PdfReader(pdf)
    pages = [p.extract_text() for p in reader.pages]
    curve = next(i for i, text in enumerate(pages) if "Robust accuracy against epsilon" in text)
    assert "pair, attacked" in pages[curve]  # the words of the chart are text, not pixels


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


@pytest.mark.parametrize(("paper", "size"), [("A4", (595.28, 841.89)), ("Letter", (612, 792))])
def test_the_paper_is_the_one_asked_for_and_nothing_leaves_it(reports, paper, size):
    render_pdf(build_report(reports, Options(paper=paper)), reports / "report.pdf")
    box = pypdf.PdfReader(reports / "report.pdf").pages[0].mediabox
    assert (float(box.width), float(box.height)) == pytest.approx(size, abs=0.1)


def test_page_one_has_the_answer_and_a_box_to_sign(reports):
    write_json({"decision": "passed", "exit_code": 0, "conditions": []}, reports / "gate.json")
    render_pdf(build_report(reports), reports / "report.pdf")
    pages = [p.extract_text() for p in pypdf.PdfReader(reports / "report.pdf").pages]
    for words in (
        "Clean accuracy is",
        "Gate: no condition is set",
        "Sanity:",
        "The adversary may change every pixel",
        "weakest class",
    ):
        assert words in pages[0].replace("\n", " "), words
    assert any("Signature" in page for page in pages[:2])


def test_the_date_of_the_results_is_shown_where_runtime_json_speaks_of_these_tensors(reports):
    runtime = reports / "summary" / "runtime.json"
    digest = read_artifacts(reports / "summary").digest()
    for known, expected in ((digest, ("results of", "2026-11-21 22:00 UTC")), ("0" * 64, None)):
        write_json({"started": 1795298400.0, "commit": "abc123", "data_digest": known}, runtime)
        facts = build_report(reports, dated=True).front.facts
        assert (expected in facts) == (expected is not None)
        assert (("commit", "abc123") in facts) == (expected is not None)
        assert not {"results of", "commit"} & {what for what, _ in build_report(reports).front.facts}  # equal bytes
