"""torchattacks (Kim 2020, arXiv 2010.01950): gradient and score attacks in PyTorch."""

from windtunnel.registry.plugins import Install, Lazy, Library

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
        install=Install(
            "torchattacks==3.5.1",
            "its attacks, the ensembles quick, standard and exhaustive, the positive control of the sanity checks",
            alone="it pins requests ~=2.25.1, and mlflow needs 2.28 or newer; pip would fall back to 3.3.0 without a word",
            beside=("tqdm", "requests", "scipy"),
        ),
    ),
)
