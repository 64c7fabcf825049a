"""The report from planted artifacts: what is there is shown, what is missing is said, and nothing is executed."""

import re

import pytest
import torch

from windtunnel.clean.assess import assess_clean
from windtunnel.core.artifacts import read_artifacts, write_artifacts
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.files import file_digest
from windtunnel.params.entry import Budget
from windtunnel.params.outcome import Clean
from windtunnel.params.sweeps import SweepEntry
from windtunnel.report.build import build_report
from windtunnel.report.html import render_html
from windtunnel.report.pdf import render_pdf
from windtunnel.summary.summarise import summarise
from windtunnel.sweeps.assess import assess as sweep
from windtunnel.visualisers.base import draw_figures
from windtunnel.visualisers.sweeps import DegradationCurveVisualiser


@pytest.fixture
def reports(digits_subject, tmp_path):
    """A reports directory with clean, a sweep and a summary of 20 digits."""
    subject = digits_subject.subset(torch.arange(20))
    clean = write_artifacts(assess_clean(Clean(), subject), tmp_path / "robustness" / "clean", subject, started=0)
    budget = Budget(norm=Norm.LINF, epsilon=0.1)
    result = sweep("fgsm", SweepEntry(epsilons=[0, 0.1]), budget, subject)
    fgsm = write_artifacts(result, tmp_path / "robustness" / "fgsm", subject, started=0)
    draw_figures(fgsm, [DegradationCurveVisualiser()])
    summary = summarise(subject, PerturbationBudget(Norm.LINF, 0.1), clean, [fgsm])
    write_artifacts(summary, tmp_path / "summary", subject, started=0)
    return tmp_path


def html_of(reports):
    render_html(build_report(reports, "Title"), reports / "report.html")
    return (reports / "report.html").read_text()


def test_both_renderings_hold_the_headline_numbers_of_metadata(reports):
    import pypdf

    accuracy = read_artifacts(reports / "summary").metrics["worst_case_accuracy"]
    render_pdf(build_report(reports, "Title"), reports / "report.pdf")
    text = "".join(page.extract_text() for page in pypdf.PdfReader(reports / "report.pdf").pages)
    assert f"{accuracy:.1%}" in text
    assert f"{accuracy:.1%}" in html_of(reports)


def test_not_broken_is_never_called_robust(reports):
    verdict = build_report(reports, "Title").verdict
    assert "does not mean that nothing can break them" in verdict
    assert "Nothing was proved" in verdict
    assert "is robust" not in verdict


def test_a_hard_failure_comes_first(reports):
    import json

    path = reports / "summary" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["kwargs"]["hard_failures"] = ["sample 7 is verified by liar and broken by pgd"]
    path.write_text(json.dumps(metadata))
    report = build_report(reports, "Title")
    assert report.findings[0].severity == "invalid"
    assert "sample 7" in report.findings[0].text
    assert "contradicts itself" in report.verdict
    assert html_of(reports).index("sample 7") < html_of(reports).index('class="verdict"')


def test_the_html_asks_for_nothing_and_lists_every_sample(reports):
    html = html_of(reports)
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", html)
    assert "http" not in html.replace("http-equiv", "")
    for name in read_artifacts(reports / "summary").sample_names:
        assert name in html


def test_a_script_in_a_name_stays_text(reports):
    render_html(build_report(reports, "<script>alert(1)</script>"), reports / "report.html")
    html = (reports / "report.html").read_text()
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_what_is_missing_or_damaged_is_said_and_the_rest_is_shown(reports):
    (reports / "robustness" / "fgsm" / "robustness_data.pt").write_bytes(b"damaged")
    report = build_report(reports, "Title", ["fgsm", "pgd"])
    texts = " ".join(f.text for f in report.findings)
    assert "Assessment fgsm is missing" in texts
    assert "Assessment pgd is missing" in texts
    assert "No sanity checks ran" in texts
    assert str(reports) not in texts
    assert any(s.title == "Clean performance" for s in report.sections)


def test_an_empty_folder_gives_a_report_that_says_so(tmp_path):
    report = build_report(tmp_path, "Title")
    assert "no summary" in report.verdict
    render_pdf(report, tmp_path / "report.pdf")
    render_html(report, tmp_path / "report.html")


def test_equal_reports_are_equal_pdfs(reports):
    for name in ("one.pdf", "two.pdf"):
        render_pdf(build_report(reports, "Title"), reports / name)
    assert file_digest(reports / "one.pdf") == file_digest(reports / "two.pdf")


def edit(path, change):
    import json

    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("summary", lambda m: m["metrics"].pop("sandwich")),
        ("summary", lambda m: m["metrics"].update(sandwich=[])),
        ("summary", lambda m: m["metrics"]["sandwich"][0].pop("n_attacked")),
        ("summary", lambda m: m["metrics"].pop("n_samples")),
        ("summary", lambda m: m["kwargs"].pop("hard_failures")),
        ("robustness/fgsm", lambda m: m.pop("semantics")),
        ("robustness/clean", lambda m: m.pop("kwargs")),
    ],
)
def test_metadata_of_another_version_costs_its_part_and_a_line(reports, file, change):
    edit(reports / file / "metadata.json", change)
    report = build_report(reports, "Title")
    assert any("missing from this report" in f.text for f in report.findings)
    render_pdf(report, reports / "report.pdf")
    render_html(report, reports / "report.html")


def test_a_damaged_picture_and_a_file_elsewhere_are_left_out(reports):
    edit(
        reports / "robustness/clean/metadata.json",
        lambda m: m.update(visualisers=[{"name": "x", "file": "../../secret.png"}]),
    )
    (reports / "robustness" / "fgsm" / "DegradationCurveVisualiser_0.png").write_bytes(b"damaged")
    report = build_report(reports, "Title")
    assert not any(section.figures for section in report.sections)
    render_pdf(report, reports / "report.pdf")


def test_a_caveat_of_the_summary_stands_on_page_one(reports):
    pseudo = {"code": "pseudo_labels", "text": "The data has no labels."}
    edit(reports / "summary/metadata.json", lambda m: m["caveats"].append(pseudo))
    assert "The data has no labels." in [f.text for f in build_report(reports, "Title").findings]
