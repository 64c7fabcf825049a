"""The digits of scikit-learn, read from its file: importing scikit-learn for them takes longer than all else that `prepare` does."""

import gzip
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.core.errors import UserError


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """1,797 scans (N, 8, 8) with values from 0 to 16, and the digit each shows (N,): `sklearn.datasets.load_digits`.

    Source: Alpaydin and Kaynak 1998, the test set of UCI's optdigits. Raises UserError where scikit-learn has no such file.
    """
    spec = find_spec("sklearn")
    folders = (spec.submodule_search_locations or []) if spec else []
    path = next((Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders), None)
    if path is None or not path.is_file():
        raise UserError("data.source: digits: scikit-learn, which has them, is not installed, or without its data")
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def stratified_split(
    labels: NDArray[np.int64], test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(train, test): ascending indices, the test set with `test_fraction` of each class, as nearly as whole samples allow.

    Draw by draw what scikit-learn's `StratifiedShuffleSplit` does (model_selection/_split.py, BSD-3): the same samples for a seed.
    Raises ValueError where one of the two is smaller than the number of classes.
    """
    _, of_class, counts = np.unique(labels, return_inverse=True, return_counts=True)
    n_test = math.ceil(test_fraction * len(labels))
    n_train = len(labels) - n_test
    if min(n_train, n_test) < len(counts):
        raise ValueError(f"{n_train} and {n_test} samples, for {len(counts)} classes")
    random = np.random.RandomState(seed)
    for_train = _apportioned(counts, n_train, random)
    for_test = _apportioned(counts - for_train, n_test, random)
    members = np.split(np.argsort(of_class, kind="stable"), np.cumsum(counts)[:-1])
    shuffled = [indices[random.permutation(len(indices))] for indices in members]
    train = [indices[:n] for indices, n in zip(shuffled, for_train, strict=True)]
    test = [indices[n : n + m] for indices, n, m in zip(shuffled, for_train, for_test, strict=True)]
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _apportioned(counts: NDArray[np.int64], draws: int, random: np.random.RandomState) -> NDArray[np.int64]:
    """Return how many of `draws` fall to each class: by largest remainder, ties by chance."""
    exact = counts / counts.sum() * draws
    floors = np.floor(exact)
    missing, remainder = int(draws - floors.sum()), exact - floors
    for value in np.unique(remainder)[::-1]:
        if not missing:
            break
        (tied,) = np.nonzero(remainder == value)
        extra = random.choice(tied, size=min(len(tied), missing), replace=False)
        floors[extra] += 1
        missing -= len(extra)
    shares: NDArray[np.int64] = floors.astype(np.int64)
    return shares
