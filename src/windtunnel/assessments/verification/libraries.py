"""The libraries that bound or decide; `transformations` is of our own certificates: rotation, brightness, a patch."""

from typing import Any

from windtunnel.registry.plugins import Install, Lazy, Library

_HERE = "windtunnel.assessments.verification"
_BOUND: Lazy[Any] = Lazy(f"{_HERE}.cascade.bound_step:BOUND")
_CHEAP: Lazy[Any] = Lazy(f"{_HERE}.cascade.bound_step:CHEAP")

LIBRARIES = (
    Library(
        name="auto-LiRPA",
        family="verification",
        package="auto-LiRPA",
        imports=("auto_LiRPA",),
        install=Install(
            "auto-LiRPA==0.3",
            "verification by bounds (ibp, crown, alpha-crown, L2), and every cascade that has such a step",
            alone="it pins torch <1.13 and torchvision <0.14; its code runs on torch 2 with three shims of ours",
            beside=("appdirs",),
        ),
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
        install=Install(
            'maraboupy>=2.0; python_version < "3.12" and platform_machine == "x86_64" and sys_platform != "win32"',
            "the complete solver, and the last step of a cascade",
        ),
        rows=Lazy(f"{_HERE}.rows:MARABOU"),
        steps={"marabou": Lazy(f"{_HERE}.cascade.solver_step:MARABOU")},
    ),
    Library(
        name="windtunnel",
        family="verification",
        package=None,
        uses=("auto-LiRPA",),  # branch and bound gives way to it
        rows=Lazy(f"{_HERE}.rows:OWN"),
        steps={
            "quick-attack": Lazy(f"{_HERE}.cascade.attack_step:ATTACK"),
            "attack": Lazy(f"{_HERE}.cascade.attack_step:ATTACK"),
            "branch-and-bound": Lazy(f"{_HERE}.cascade.search_step:SEARCH"),
        },
    ),
    Library(name="transformations", family="verification", package=None, rows=Lazy(f"{_HERE}.rows:TRANSFORMATIONS")),
)
