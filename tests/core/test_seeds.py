import random

import numpy as np
import torch

from windtunnel.core.seeds import derive_seed, seeded


def test_a_seed_depends_on_every_part_of_its_name():
    seeds = {derive_seed(0, "pgd", 0), derive_seed(1, "pgd", 0), derive_seed(0, "cw", 0), derive_seed(0, "pgd", 1)}
    assert len(seeds) == 4


def test_names_do_not_run_together():
    assert derive_seed(0, "ab", "c") != derive_seed(0, "a", "bc")


def test_seeded_repeats_all_three_streams_and_restores_them():
    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    expected = draw()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    with seeded(1):
        first = draw()
    assert draw() == expected
    with seeded(1):
        assert draw() == first
