"""The report from planted artifacts: what is there is shown, what is missing is said, and nothing is executed."""

import itertools
import json
import re

import pytest

from tests.made import content
from tests.reporting.report.conftest import edit, html_of, write_run
from windtunnel.assessments.figures.pictures import PictureGrid
from windtunnel.assessments.figures.scene import Rect
from windtunnel.params.results import Report as Options
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.files import file_digest, write_json
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.model import Chart, Figure
from windtunnel.reporting.report.pdf import render_pdf


def blocks_of(report, kind):
    sections = [s for top in report.sections for s in (top, *top.children)]
    return [block for section in sections for block in section.blocks if isinstance(block, kind)]


def test_both_renderings_hold_the_headline_numbers_of_metadata(reports):
    import pypdf

    accuracy = read_artifacts(reports / "summary").metrics["worst_case_accuracy"]
    render_pdf(build_report(reports), reports / "report.pdf")
    text = "".join(page.extract_text() for page in pypdf.PdfReader(reports / "report.pdf").pages)
    assert f"{accuracy:.1%}" in text
    assert f"{accuracy:.1%}" in html_of(reports)


def test_not_broken_is_never_called_robust(reports):
    statement = build_report(reports).front.statement
    assert "at most" in statement
    assert "Nothing was verified" in statement
    assert "is robust" not in statement


def test_a_hard_failure_comes_first(reports):
    path = reports / "summary" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["kwargs"]["hard_failures"] = ["sample 7 is verified by liar and broken by pgd"]
    path.write_text(json.dumps(metadata))
    report = build_report(reports)
    assert report.front.alarms[0].severity == "invalid"
    assert "sample 7" in report.front.alarms[0].text
    assert "contradicts itself" in report.front.statement
    assert html_of(reports).index("sample 7") < html_of(reports).index('class="statement"')


def test_the_html_asks_for_nothing_and_lists_every_sample(reports):
    html = html_of(reports)
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", html)
    assert "http" not in html.replace("http-equiv", "")
    for name in read_artifacts(reports / "summary").sample_names:
        assert name in html


def test_a_script_in_a_name_stays_text(named, tmp_path):
    evil = "</script><script>alert(1)</script>"
    subject = named([f"{evil}{i}" for i in range(12)], [f"{evil}{k}" for k in range(10)])
    html = html_of(write_run(subject, tmp_path), Options(title=evil))
    assert "<script>alert" not in html
    assert html.count("<script") == 2  # the data and our own
    render_pdf(build_report(tmp_path, Options(title=evil)), tmp_path / "report.pdf")


def test_what_is_missing_or_damaged_is_said_and_the_rest_is_shown(reports):
    (reports / "robustness" / "fgsm" / "robustness_data.pt").write_bytes(b"damaged")
    report = build_report(reports, None, ["fgsm", "pgd"])
    texts = " ".join(f.text for f in report.front.caveats)
    assert "Assessment fgsm is missing" in texts
    assert "Assessment pgd is missing" in texts
    assert "No sanity checks ran" in texts
    assert str(reports) not in texts
    assert any(s.title.startswith("How accurate") for s in report.sections)


def test_an_empty_folder_gives_a_report_that_says_so(tmp_path):
    report = build_report(tmp_path)
    assert "Nothing was assessed" in report.front.statement
    render_pdf(report, tmp_path / "report.pdf")
    render_html(report, tmp_path / "report.html")


def test_equal_reports_are_equal_pdfs(reports):
    for name in ("one.pdf", "two.pdf"):
        render_pdf(build_report(reports), reports / name)
    assert file_digest(reports / "one.pdf") == file_digest(reports / "two.pdf")


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
    report = build_report(reports)
    assert any("missing from this report" in f.text for f in report.front.caveats)
    render_pdf(report, reports / "report.pdf")
    render_html(report, reports / "report.html")


def test_a_damaged_picture_and_a_file_elsewhere_are_left_out(reports):
    edit(
        reports / "robustness/clean/metadata.json",
        lambda m: m.update(visualisers=[{"name": "x", "file": "../../secret.png"}]),
    )
    for picture in (reports / "robustness" / "pair").glob("*.png"):
        picture.write_bytes(b"damaged")
    unknown = [{"name": "NotInstalled", "file": "ImagePairVisualiser_0.png"}]
    edit(reports / "robustness/pair/metadata.json", lambda m: m.update(visualisers=unknown))
    report = build_report(reports, Options(layout="full", figure_scope="per_assessor"))
    assert not blocks_of(report, Figure)
    render_pdf(report, reports / "report.pdf")


def test_a_caveat_of_the_summary_stands_on_page_one(reports):
    pseudo = {"code": "pseudo_labels", "text": "The data has no labels."}
    edit(reports / "summary/metadata.json", lambda m: m["caveats"].append(pseudo))
    assert "The data has no labels." in [f.text for f in build_report(reports).front.caveats]


def test_every_id_of_the_html_is_there_once(reports):
    for name in ("samples", "glossary"):
        (reports / "robustness" / "fgsm").rename(reports / "robustness" / name)
        edit(reports / "robustness" / name / "metadata.json", lambda m, name=name: m.update(name=name))
        ids = re.findall(r'\sid="([^"]+)"', html_of(reports))
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"', html_of(reports))) <= set(ids)
        (reports / "robustness" / name).rename(reports / "robustness" / "fgsm")


@pytest.mark.parametrize("scope", ["per_sample", "per_assessor"])
def test_the_compact_layout_shows_the_clean_image_of_a_sample_once(reports, scope):
    def clean_pictures(layout):
        grids = blocks_of(build_report(reports, Options(layout=layout, figure_scope=scope)), PictureGrid)
        pictures = [p for grid in grids for _, cells in grid.rows for p in cells if p]
        return [p.alt for p in pictures if p.alt.endswith(", clean")]

    once = clean_pictures("compact")
    assert len(once) == len(set(once)) > 0
    if scope == "per_sample":
        assert len(clean_pictures("full")) == 2 * len(once)  # beside each of the two attacks


def test_figures_that_repeat_the_clean_image_are_kept_on_disk_and_shown_by_the_full_layout_alone(reports):
    names = {"ImagePairVisualiser_0.png", "PerturbationHeatmapVisualiser_1.png"}
    captions = ("pair: clean and perturbed images", "pair: change per pixel")

    def shown(layout):
        grids = blocks_of(build_report(reports, Options(layout=layout, figure_scope="per_assessor")), PictureGrid)
        return {c for c in captions if any(grid.caption.startswith(c) for grid in grids)}

    rows = read_artifacts(reports / "robustness" / "pair").metadata.model_dump(mode="json")["visualisers"]
    assert {row["file"] for row in rows} == names
    assert [row.get("embeds_clean_input", False) for row in rows] == [True, False]
    assert all(row["embeds_perturbation_map"] for row in rows)
    assert shown("full") == set(captions)
    assert not shown("compact")


def test_a_chart_needs_no_picture_and_a_picture_no_chart(reports):
    next((reports / "robustness" / "fgsm").glob("*.png")).unlink()
    captions = [chart.caption for chart in blocks_of(build_report(reports), Chart)]
    assert "fgsm: Degradation curve" in captions


def test_the_facts_that_did_most_damage_are_few_and_bring_their_caveats(reports):
    report = build_report(reports)
    assert 1 <= len(report.front.findings) <= 6
    edit(
        reports / "robustness/fgsm/metadata.json",
        lambda m: (
            m["metrics"].update(attack_success_rate=0.9) or m.update(caveats=[{"code": "x", "text": "Only one step."}])
        ),
    )
    report = build_report(reports)
    assert any("fgsm (FGSM): it breaks 90.0%" in f.text for f in report.front.findings)
    assert "fgsm: Only one step." in [f.text for f in report.front.caveats]


CHECKS = [
    {"id": "B1", "title": "Budget respected", "severity": "HARD", "status": "pass", "value": 0.06, "threshold": 0.0600016, "n": 20},
    {"id": "C3", "title": "Black-box beats white-box", "severity": "WARN", "status": "warn", "value": 0.2, "threshold": 0.002,
     "remedy": "Use a stronger attack.", "samples": ["digit-0021"], "source": "Athalye et al. 2018"},
    {"id": "C1", "title": "Zero gradients", "severity": "WARN", "status": "not_run", "reason": "no gradients here"},
]  # fmt: skip


def test_the_sanity_page_shows_value_threshold_and_remedy_by_group_and_what_was_not_run(reports):
    write_json({"kwargs": {"checks": CHECKS}}, reports / "sanity" / "metadata.json")
    report = build_report(reports)
    section = next(s for s in report.sections if s.title.startswith("Can I trust"))
    assert "necessary, not sufficient" in section.blocks[0].text
    flagged, left = section.blocks[1:]
    assert flagged.rows == (
        ("C3", "Black-box beats white-box", "! warn", "", "Use a stronger attack.", "samples digit-0021"),
    )
    assert left.rows == (("C1", "no gradients here"),)
    after, masking = next(s for s in report.sections if s.title == "Every sanity check").blocks
    assert after.caption.startswith("B.")
    assert masking.caption.startswith("C.")
    first, second = masking.rows
    assert first[0] == "C3"
    assert {"0.2", "0.002"} <= set(first)
    assert second[3] == "not run"
    assert any(f.text.startswith("C3 Black-box beats white-box") for f in report.front.caveats)
    render_pdf(report, reports / "report.pdf")


@pytest.mark.parametrize("content", ["{", "[]", '{"kwargs": {"checks": [{"id": "C1"}]}}'])
def test_damaged_sanity_checks_and_gate_cost_a_line_each(reports, content):
    (reports / "sanity").mkdir()
    (reports / "sanity" / "metadata.json").write_text(content)
    (reports / "gate.json").write_text("{")
    texts = [f.text for f in build_report(reports).front.caveats]
    assert any(t.startswith("The sanity checks are missing") for t in texts)
    assert any(t.startswith("The gate's decision is missing") for t in texts)


def test_the_gate_is_shown_in_words_with_its_conditions(reports):
    condition = {"name": "worst_case/accuracy", "value": 0.2, "threshold": 0.3, "interval": [0.1, 0.4], "holds": False}
    write_json({"decision": "failed", "hard_failures": [], "conditions": [condition]}, reports / "gate.json")
    section = next(s for s in build_report(reports).sections if s.title == "The gate")
    assert "does not meet" in section.blocks[0].text
    assert section.blocks[1].rows == (("worst_case/accuracy", "", "0.2", "[0.1, 0.4]", "≥ 0.3", "fails"),)


def test_every_sample_carries_what_each_assessment_found_of_it(reports):
    samples = build_report(reports).samples
    fgsm, summary = read_artifacts(reports / "robustness" / "fgsm"), read_artifacts(reports / "summary")
    assert [name for name, _ in samples.assessments] == ["fgsm", "pair"]
    for i, row in enumerate(samples.rows):
        result = row.results[0]
        assert (
            result.verdict.replace(" ", "_")
            == {1: "attack_succeeded", 2: "attack_failed"}[int(fgsm.tensor("verdicts")[i])]
        )
        broken = int(summary.tensor("verdicts")[i]) == 1
        assert (row.status == "broken") == (broken and row.target == row.clean)
        if row.status == "broken":
            assert float(row.distance) == pytest.approx(float(summary.tensor("perturbation_distance")[i]), rel=1e-3)


def test_without_show_sample_names_no_name_is_anywhere_in_the_report(reports, tmp_path):
    summary = reports / "summary" / "metadata.json"
    names = json.loads(summary.read_text())["kwargs"]["sample_names"]
    edit(summary, lambda m: m["kwargs"].update(hard_failures=[f"sample {names[3]} is verified and broken"]))
    report = build_report(reports, Options(show_sample_names=False))
    assert report.samples.rows[0].name == "sample 1"
    render_html(report, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert not [name for name in names if name in page]
    assert "sample 4" in page
    render_html(build_report(reports), tmp_path / "named.html")
    assert names[3] in (tmp_path / "named.html").read_text()


def test_a_suite_shows_the_single_corruptions_below_it(reports):
    child = reports / "robustness" / "fgsm" / "fog-3"
    metrics = {"corrupted_accuracy": 0.25, "corrupted_accuracy_ci_low": 0.1, "corrupted_accuracy_ci_high": 0.5}
    write_json(content("statistical_sampling", metrics=metrics), child / "metadata.json")
    (reports / "robustness" / "fgsm" / "fog-5").mkdir()
    (reports / "robustness" / "fgsm" / "fog-5" / "metadata.json").write_text("{")
    report = build_report(reports, Options(layout="full"))
    html = html_of(reports, Options(layout="full"))
    assert "Single corruptions of fgsm" in html
    assert "[10.0%, 50.0%]" in html
    assert any("fgsm/fog-5 is missing" in f.text for f in report.front.caveats)


def test_equal_reports_are_equal_html(reports):
    first = html_of(reports)
    assert html_of(reports) == first


def test_one_assessment_alone_without_summary_or_clean(reports):
    import shutil

    shutil.rmtree(reports / "summary")
    shutil.rmtree(reports / "robustness" / "clean")
    report = build_report(reports, None, ["pair"])
    assert "no summary" in report.front.statement
    assert len(report.samples.rows) == 20
    render_pdf(report, reports / "report.pdf")
    render_html(report, reports / "report.html")


def test_a_figure_with_options_of_its_own_is_shown_as_it_was_asked_for(reports):
    path = reports / "robustness/clean/metadata.json"
    edit(path, lambda m: m["visualisers"][1].update(options={"max_classes": 3}))
    per_class = [c for c in blocks_of(build_report(reports), Chart) if c.caption == "clean: Clean accuracy per class"]
    assert [sum(isinstance(mark, Rect) for mark in chart.scene.marks) for chart in per_class] == [3]


def test_a_visualiser_that_is_not_installed_is_shown_as_the_picture_that_it_left(reports):
    path = reports / "robustness/fgsm/metadata.json"
    edit(path, lambda m: m["visualisers"][0].update(name="SomebodyElses"))
    shown = [figure.path.name for figure in blocks_of(build_report(reports), Figure)]
    assert shown == ["DegradationCurveVisualiser_0.png"]


def test_no_picture_of_a_figure_stands_in_the_report(reports):
    """One renderer: what visualisers describe is drawn in vectors here, in whatever layout."""
    for layout, scope in itertools.product(("compact", "full"), ("per_sample", "per_assessor")):
        assert not blocks_of(build_report(reports, Options(layout=layout, figure_scope=scope)), Figure)


def test_the_caveats_of_a_check_stand_with_the_assessments_it_concerns(reports):
    write_json(
        {"kwargs": {"checks": [{**CHECKS[1], "assessments": ["pair"], "reason": "fewer"}]}},
        reports / "sanity/metadata.json",
    )
    report = build_report(reports)
    children = {child.title: child for section in report.sections for child in section.children}
    texts = {name: " ".join(getattr(b, "text", "") for b in children[name].blocks) for name in ("fgsm", "pair")}
    assert "Sanity check C3" in texts["pair"]
    assert "Sanity check C3" not in texts["fgsm"]
