"""dvc.lock is read as types: what stages ran with, whatever else DVC notes of them."""

import hashlib
import json

import pytest

from windtunnel.operations.dvc_files import read_lock

LOCK = """\
schema: '2.0'
stages:
  attack@pgd:
    cmd: python -m stages.attack pgd
    deps:
    - path: reports/resolved/attack/pgd.json
      hash: md5
      md5: 0a1b
      size: 12
    params:
      params.yaml:
        attacks.pgd:
          budget: {epsilon: 1e-3}
    outs:
    - path: reports/robustness/pgd
      hash: md5
      md5: 0c1d.dir
  track:
    cmd: python -m stages.track
"""


def test_a_stage_has_its_files_and_its_params(tmp_path):
    (tmp_path / "dvc.lock").write_text(LOCK)
    attack, track = read_lock(tmp_path / "dvc.lock", exact=True).values()
    assert attack.md5_of_deps == {"reports/resolved/attack/pgd.json": "0a1b"}
    assert attack.md5_of_outs == {"reports/robustness/pgd": "0c1d.dir"}
    assert attack.own_params == {"attacks.pgd": {"budget": {"epsilon": 1e-3}}}
    assert (track.md5_of_deps, track.own_params) == ({}, {})


@pytest.mark.parametrize("content", ["", "[]", "stages: 3", "stages: {train: {deps: [{md5: a}]}}", "stages: {a: : b"])
def test_a_damaged_lock_knows_of_no_stage(tmp_path, content):
    (tmp_path / "dvc.lock").write_text(content)
    assert read_lock(tmp_path / "dvc.lock") == {}
    assert read_lock(tmp_path / "nowhere.lock") == {}


def test_a_stage_is_known_by_its_command_its_dependencies_and_its_params_as_they_stand_in_the_file(tmp_path):
    (tmp_path / "dvc.lock").write_text(LOCK)
    stage = read_lock(tmp_path / "dvc.lock", exact=True)["attack@pgd"]
    noted = [
        "python -m stages.attack pgd",
        [{"hash": "md5", "md5": "0a1b", "path": "reports/resolved/attack/pgd.json", "size": 12}],
        {"params.yaml": {"attacks.pgd": {"budget": {"epsilon": 1e-3}}}},
    ]
    assert stage.hash == hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()[:32]
