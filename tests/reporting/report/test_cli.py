"""`windtunnel report` on directories, without DVC and without params.yaml."""

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


def test_compact_leaves_the_long_tables_out(run, reports):
    assert run("--compact").exit_code == 0
    assert "Every metric of" not in (reports / "report.html").read_text()


def test_open_opens_the_file(run, reports, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run("--open").exit_code == 0
    assert opened == [(reports / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "fgms"], "'fgms' is not an assessment in"),
        (["--only", "attacks.pear"], "Did you mean 'pair'?"),
    ],
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
