"""`windtunnel report` on directories, without DVC and without params.yaml."""

import pypdf
import pytest
from click.testing import CliRunner

from windtunnel.cli.main import cli


@pytest.fixture
def run(reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(cli, ["report", "--reports", str(reports), *arguments])

    return call


def test_one_assessment_alone_goes_where_it_is_told(run, tmp_path):
    result = run("--only", "sweeps.pair", "--output", "alone", "--title", "Of one sweep", "--full")
    assert result.exit_code == 0, result.output
    html = (tmp_path / "alone" / "report.html").read_text()
    assert "Of one sweep" in html
    assert "Every metric of pair" in html
    assert "Every metric of fgsm" not in html
    assert (tmp_path / "alone" / "report.pdf").stat().st_size


@pytest.mark.parametrize(("layout", "there"), [("--compact", False), ("--full", True)])
def test_details_are_folded_on_screen_and_on_paper_in_the_full_layout_alone(run, tmp_path, layout, there):
    assert run(layout).exit_code == 0
    paper = "".join(page.extract_text() for page in pypdf.PdfReader(tmp_path / "report" / "report.pdf").pages)
    assert ("Every metric of pair" in paper) == there
    html = (tmp_path / "report" / "report.html").read_text()
    assert "Every metric of pair" in html
    assert ('<details class="detail">' in html) != there


def test_open_opens_the_file(run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run("--open").exit_code == 0
    assert opened == [(tmp_path / "report" / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--only", "fgms"], "'fgms' is not an assessment in"), (["--only", "attacks.pear"], "Did you mean 'pair'?")],
)
def test_an_unknown_name_is_refused_with_the_nearest(run, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_missing_folder_is_one_line(tmp_path):
    result = CliRunner().invoke(cli, ["report", "--reports", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "is no folder" in result.output
    assert "Traceback" not in result.output
