"""The libraries that bound or decide."""

from __future__ import annotations

from typing import Any

from windtunnel.core.plugins import Lazy, Library

_HERE = "windtunnel.assessments.verification"
_BOUND: Lazy[Any] = Lazy(f"{_HERE}.bound_step:BOUND")
_CHEAP: Lazy[Any] = Lazy(f"{_HERE}.bound_step:CHEAP")

LIBRARIES = (
    Library(
        name="auto-LiRPA",
        family="verification",
        package="auto-LiRPA",
        imports=("auto_LiRPA",),
        rows=Lazy(f"{_HERE}.rows:LIRPA"),
        steps={
            "ibp": _CHEAP,
            "forward": _CHEAP,
            "crown-ibp": _CHEAP,
            "forward+backward": _BOUND,
            "crown": _BOUND,
            "alpha-crown": _BOUND,
        },
    ),
    Library(
        name="Marabou",
        family="verification",
        package="maraboupy",
        imports=("maraboupy", "onnx", "onnxruntime"),
        rows=Lazy(f"{_HERE}.rows:MARABOU"),
        steps={"marabou": Lazy(f"{_HERE}.solver_step:MARABOU")},
    ),
    Library(
        name="windtunnel",
        family="verification",
        package=None,
        uses=("auto-LiRPA",),  # branch and bound gives way to it
        rows=Lazy(f"{_HERE}.rows:OWN"),
        steps={
            "quick-attack": Lazy(f"{_HERE}.attack_step:ATTACK"),
            "attack": Lazy(f"{_HERE}.attack_step:ATTACK"),
            "branch-and-bound": Lazy(f"{_HERE}.search_step:SEARCH"),
        },
    ),
)
