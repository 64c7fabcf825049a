"""Lines written into params.yaml: comments, order and quotes stay, and nothing else changes."""

import pytest

from windtunnel.boundary.params_file import read_params
from windtunnel.core.errors import UserError
from windtunnel.operations.strengthen import rewrite

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


@pytest.fixture
def params_file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(TEXT)
    return path


def _set_batch_sizes(**sizes):
    return lambda content: [content["attacks"][name].update(batch_size=size) for name, size in sizes.items()]


def test_comments_order_and_quotes_stay(params_file):
    rewrite(params_file, _set_batch_sizes(fgsm=64, pgd=32))
    lines = params_file.read_text().splitlines()
    assert "  fgsm: {library: torchattacks, algorithm: FGSM, batch_size: 64} # plain" in lines
    assert [line for line in lines if "batch_size" not in line] == [
        line for line in TEXT.splitlines() if "fgsm" not in line
    ]
    assert read_params(params_file)["attacks"]["pgd"]["batch_size"] == 32


def test_an_alias_cannot_be_changed_alone(params_file):
    shared = TEXT.replace("fgsm: {", "fgsm: &one {") + "  again: *one\n"
    params_file.write_text(shared)
    with pytest.raises(UserError, match=r"alias \(\*\) of another cannot be changed alone"):
        rewrite(params_file, _set_batch_sizes(fgsm=64, again=32))
    assert params_file.read_text() == shared


def test_aliases_that_change_alike_are_written(params_file):
    params_file.write_text(TEXT.replace("fgsm: {", "fgsm: &one {") + "  again: *one\n")
    rewrite(params_file, _set_batch_sizes(fgsm=64, again=64))
    attacks = read_params(params_file)["attacks"]
    assert (attacks["fgsm"]["batch_size"], attacks["again"]["batch_size"]) == (64, 64)


def test_an_entry_with_a_merge_key_gets_its_own_value(params_file):
    params_file.write_text(TEXT.replace("fgsm: {", "fgsm: &one {") + "  again: {<<: *one, restarts: 2}\n")
    rewrite(params_file, _set_batch_sizes(again=32))
    attacks = read_params(params_file)["attacks"]
    assert attacks["again"]["batch_size"] == 32
    assert "batch_size" not in attacks["fgsm"]
