"""Two runs on the same samples."""

import pytest
import torch
from click.testing import CliRunner

from windtunnel.cli.compare import compare as compare_command
from windtunnel.compare.paired import compare_runs, mcnemar_exact
from windtunnel.core.artifacts import save_tensors
from windtunnel.core.errors import UserError
from windtunnel.core.files import write_json


def write_run(root, verdicts, *, shift=0.0, steps=10):
    n = len(verdicts)
    folder = root / "robustness" / "pgd"
    folder.mkdir(parents=True)
    save_tensors({
        "clean_inputs": torch.zeros(n, 1, 2, 2) + shift, "targets": torch.zeros(n, dtype=torch.int64),
        "clean_predictions": torch.tensor([0] * (n - 1) + [1]), "verdicts": torch.tensor(verdicts),
    }, folder / "robustness_data.pt")  # fmt: skip
    write_json({"name": "pgd", "metrics": {}, "kwargs": {"sample_names": [f"s{i}" for i in range(n)]},
                "library": "torchattacks", "algorithm": "PGD", "semantics": {}, "call_kwargs": {"steps": steps}},
               folder / "metadata.json")  # fmt: skip
    return root


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 2 / 32), (0, 10, 2 / 1024), (1, 3, 10 / 16)]
)
def test_mcnemar_is_the_binomial_tail_on_the_flips(gained, lost, p):
    assert mcnemar_exact(gained, lost) == pytest.approx(p)


def test_flips_are_named_and_a_misclassified_sample_never_holds(tmp_path):
    first = write_run(tmp_path / "a", [2, 1, 2, 2])
    second = write_run(tmp_path / "b", [1, 2, 1, 2], steps=40)
    (row,) = compare_runs(first, second)
    assert (row.gained, row.lost) == (("s1",), ("s0", "s2"))
    assert (row.first, row.second) == (0.5, 0.25)
    assert not row.same_protocol
    done = CliRunner().invoke(compare_command, [str(first), str(second)])
    assert "pgd lost: s0, s2" in done.output


def test_other_samples_under_equal_names_are_refused(tmp_path):
    with pytest.raises(UserError, match="other samples"):
        compare_runs(write_run(tmp_path / "a", [2, 2]), write_run(tmp_path / "b", [2, 2], shift=0.5))


def test_a_directory_without_results_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="no directory of results"):
        compare_runs(tmp_path, tmp_path)
