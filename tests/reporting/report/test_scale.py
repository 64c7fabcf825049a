"""Many samples: the HTML stays small, thumbnails are sampled and said to be; benchmarks/report.py measures the large case."""

import json
import re

from benchmarks.report import write_run
from windtunnel.reporting.report import pictures
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html


def test_thumbnails_of_a_large_run_are_sampled_and_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PIXELS", 40 * 16 * 16)  # room for 40 thumbnails
    write_run(tmp_path, 300, 2, size=16)
    report = build_report(tmp_path)
    render_html(report, tmp_path / "report.html")
    attacks = report.samples.sprites[1:]
    assert re.search(r"\d+ of 300 samples have a thumbnail, evenly spaced", report.samples.note)
    assert [len(s.slots) for s in attacks] == [10, 10]
    data = re.search(
        r'<script type="application/json" id="sample-data">(.*?)</script>', (tmp_path / "report.html").read_text()
    )
    assert len(json.loads(data.group(1))["rows"]) == 300


def test_a_small_run_has_a_thumbnail_for_every_sample_and_attack(tmp_path):
    write_run(tmp_path, 30, 2, size=8)
    report = build_report(tmp_path)
    assert [len(s.slots) for s in report.samples.sprites] == [30, 30, 30]
    assert "thumbnail" not in report.samples.note
