"""Make docs/images/transformations/*.png: rotations and patches on LeNet5 and MNIST of WINDTUNNEL_SHARED (../shared).

python -m benchmarks.transformation_pictures
"""

from __future__ import annotations

import shutil
from pathlib import Path

import windtunnel as wt
from benchmarks.transformations import reference
from windtunnel.assessments.figures.base import VISUALISERS, draw_figures
from windtunnel.assessments.figures.registry import register_figures

TARGET = Path(__file__).parents[1] / "docs" / "images" / "transformations"
_OURS = {"library": "transformations"}
TURNED = {"attacks": {"turn": {**_OURS, "algorithm": "grid"}},
          "verify": {"turn_proof": {**_OURS, "algorithm": "branch-and-bound", "samples": {"n": 14}, "timeout": 20,
                                    "params": {"verified_range": True}}}}  # fmt: skip
STUCK = {"attacks": {"stick": {**_OURS, "algorithm": "gradient", "params": {"restarts": 3, "places": 60}},
                     "print": {**_OURS, "algorithm": "universal", "samples": {"n": 30, "selection": "random"}}},
         "verify": None}  # fmt: skip
FIGURES = {"turn": "ImagePairVisualiser", "turn_proof": "CertifiedCurveVisualiser", "stick": "SquarePlacesVisualiser",
           "print": "SquarePlacesVisualiser"}  # fmt: skip


def main() -> None:
    """Assess 60 samples and draw a figure of each entry."""
    register_figures()
    TARGET.mkdir(parents=True, exist_ok=True)
    subject = reference("cln", 60)
    data, model = subject.dataset, subject.classifier.module
    for budget, entries in (({"rotation": 50}, TURNED), ({"patch": 5}, STUCK)):
        result = wt.assess(model, data.inputs, data.targets, budget=budget, sanity=None, **entries)
        for name in FIGURES.keys() & {*entries["attacks"], *(entries["verify"] or {})}:
            (path,) = draw_figures(result[name], [VISUALISERS[FIGURES[name]]()])
            shutil.copy(path, TARGET / f"{name}.png")


if __name__ == "__main__":
    main()
