"""torchattacks (Kim 2020, arXiv 2010.01950): gradient and score attacks in PyTorch."""

from __future__ import annotations

from windtunnel.core.plugins import Lazy, Library

LIBRARIES = (
    Library(
        name="torchattacks",
        family="attacks",
        package="torchattacks",
        rows=Lazy("windtunnel.assessments.attacks.torchattacks.rows:ROWS"),
        adapter=Lazy("windtunnel.assessments.attacks.torchattacks.adapter:perturb"),
        call=Lazy("windtunnel.assessments.attacks.torchattacks.adapter:call_of"),
        imports=("torchattacks",),
        module="torchattacks",
    ),
)
