"""runtime.json is written and read as one type; what was not measured is left out."""

import json

from windtunnel.records.run_times import Runtime, read_runtime


def test_what_was_measured_is_read_as_it_was_written(tmp_path):
    measured = Runtime(started=1.5, seconds=0.25, host="here", runtime_per_sample=(0.1, 0.2), data_digest="abc")
    measured.write(tmp_path)
    assert read_runtime(tmp_path) == measured
    assert "rows_asked" not in json.loads((tmp_path / "runtime.json").read_text())


def test_an_older_file_is_read_and_a_damaged_one_is_none(tmp_path):
    (tmp_path / "runtime.json").write_text('{"seconds": 3, "started": 1, "threads": 4}')
    assert read_runtime(tmp_path).seconds == 3
    (tmp_path / "runtime.json").write_text('{"seconds": "long"}')
    assert read_runtime(tmp_path) is None
