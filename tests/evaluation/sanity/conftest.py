"""A small run, made for real and written to disk as the stages write it, for every check to look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gallery.case import run_entry
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.evidence import Evidence, collect
from windtunnel.evaluation.validate import validate
from windtunnel.params.load import entries
from windtunnel.params.results import Clean
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import write_artifacts

L2 = {"norm": "L2", "epsilon": 0.5}
RUN: dict[str, object] = {
    "data": {"source": "digits", "samples": {"n": 60, "selection": "stratified"}},
    "model": {"source": "train", "train": {"architecture": "mlp", "epochs": 15}},
    "budget": {"norm": "Linf", "epsilon": 0.06},
    "attacks": {
        "fgsm": {"library": "torchattacks", "algorithm": "FGSM"},
        "twin": {"library": "foolbox", "algorithm": "LinfFastGradientAttack"},
        "pgd": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": 0.01}, "restarts": 2},
        "aimed": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 10, "step_size": 0.015}, "target_classes": "next"},
        "square": {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 100}},
        "pgd_l2": {"library": "torchattacks", "algorithm": "PGDL2", "budget": {**L2, "steps": 40, "step_size": 0.05}, "restarts": 2},
        "deepfool": {"library": "foolbox", "algorithm": "L2DeepFoolAttack", "budget": L2},
        "hopskip": {
            "library": "foolbox", "algorithm": "HopSkipJumpAttack", "samples": {"n": 12},
            "params": {"initial_gradient_eval_steps": 10, "max_gradient_eval_steps": 20}, "budget": {**L2, "steps": 2},
        },
    },
    "sweeps": {"curve": {"epsilons": [0, 0.05, 0.1, 0.2, 0.3, 0.5]}},
    "verification": {
        "crown": {"library": "auto-LiRPA", "algorithm": "crown"},
        "crown_wide": {"library": "auto-LiRPA", "algorithm": "crown", "budget": {"epsilon": 0.1}},
        "marabou": {"library": "Marabou", "algorithm": "linf-box", "samples": {"n": 8}, "timeout": 10},
    },
    "corruptions": {"noise": {"algorithm": "noise", "severities": [1, 3], "upsample": 32}},
    # 60 samples are few, and say so; the limits are lowered so that the other checks can be told apart.
    "sanity": {"profile": "full", "samples": 40, "thresholds": {"D11": 10, "F2": 0.5, "F8": 0.6}},
}  # fmt: skip


def assessed(subject: Subject, params: Params, directory: Path) -> Evidence:
    """Run every entry of `params` on `subject`, write the artifacts, and collect them."""
    clean = write_artifacts(assess_clean(Clean(), subject), directory / "clean", subject, started=time.time())
    for family, name, entry in entries(params):
        run_entry(family, name, entry, params, subject, directory)
    return collect(params, subject, clean, directory)


@pytest.fixture(scope="session")
def run_once(mlp_subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    import torch

    return assessed(mlp_subject.subset(torch.arange(60)), validate(RUN), tmp_path_factory.mktemp("robustness"))


@pytest.fixture
def evidence(run_once: Evidence) -> Evidence:
    """The run, with nothing remembered of earlier checks."""
    return replace(run_once, notes={})


Tamper = Callable[[Evidence], Evidence]
