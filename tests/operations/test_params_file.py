"""Lines written into params.yaml: comments, order and quotes stay, and nothing else changes."""

import pytest

from windtunnel.boundary.params_file import read_params
from windtunnel.core.errors import UserError
from windtunnel.operations.strengthen import add_to

TEXT = """\
data: {source: digits}
model: {source: train} # the default
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM} # plain
  pgd:
    # written out
    library: 'torchattacks'
    algorithm: PGD
"""
ADDED = {"again": {"library": "torchattacks", "algorithm": "PGD", "on": {"survivors_of": ["pgd"]}}}


@pytest.fixture
def params_file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(TEXT)
    return path


def test_comments_order_and_quotes_stay(params_file):
    add_to(params_file, ADDED)
    assert params_file.read_text().startswith(TEXT)
    assert read_params(params_file)["attacks"]["again"] == ADDED["again"]


def test_an_alias_cannot_be_changed_alone(params_file):
    shared = TEXT.replace("attacks:\n", "attacks: &one\n") + "queries: *one\n"
    params_file.write_text(shared)
    with pytest.raises(UserError, match=r"alias \(\*\) of another cannot be changed alone"):
        add_to(params_file, ADDED)
    assert params_file.read_text() == shared


@pytest.mark.parametrize("entry", ["*one", "{<<: *one, restarts: 2}"])
def test_entries_that_refer_to_each_other_stay_as_they_are(params_file, entry):
    params_file.write_text(TEXT.replace("fgsm: {", "fgsm: &one {") + f"  other: {entry}\n")
    before = read_params(params_file)["attacks"]
    add_to(params_file, ADDED)
    assert read_params(params_file)["attacks"] == {**before, **ADDED}
    assert f"other: {entry}" in params_file.read_text()
