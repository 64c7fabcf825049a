"""The digits and their split are scikit-learn's, to the last sample, without importing it."""

import subprocess
import sys

import numpy as np
import pytest

from windtunnel.boundary.data import sources
from windtunnel.boundary.data.sources import digits, stratified_split
from windtunnel.core.errors import UserError


def test_the_scans_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = digits()
    theirs = load_digits()
    assert np.array_equal(images, theirs.images)
    assert np.array_equal(labels, theirs.target)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 1 / 3, 0.5, 0.77, 0.99])
def test_the_split_is_that_of_scikit_learn_for_every_seed(fraction):
    from sklearn.model_selection import train_test_split

    _, labels = digits()
    rng = np.random.default_rng(0)
    # A set whose classes are alike in size draws the ties by chance.
    for labelled in (labels, np.repeat(np.arange(7), 101), rng.integers(0, 5, 999)):
        for seed in (0, 1, 7, 2**32 - 1):
            theirs = train_test_split(
                np.arange(len(labelled)), test_size=fraction, stratify=labelled, random_state=seed
            )
            ours = stratified_split(labelled, fraction, seed)
            assert all(np.array_equal(np.sort(a), b) for a, b in zip(theirs, ours, strict=True))


def test_a_share_that_leaves_a_class_without_a_sample_is_refused():
    with pytest.raises(ValueError, match="for 10 classes"):
        stratified_split(np.repeat(np.arange(10), 20), 0.01, 0)


def test_an_installation_without_the_file_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^data\.source: digits: scikit-learn"):
        digits()


def test_prepare_reads_the_digits_without_scikit_learn_or_what_it_brings():
    code = (
        "import sys; from windtunnel.operations.stages import prepare; from windtunnel.boundary.data.load import load_dataset; "
        "from windtunnel.params.data import Data; load_dataset(Data(), 0); "
        "print([name for name in ('sklearn', 'scipy', 'joblib', 'pandas', 'mlflow', 'matplotlib', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
