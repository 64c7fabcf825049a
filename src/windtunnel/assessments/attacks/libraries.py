"""The libraries of attacks: those of other packages, and our own."""

from windtunnel.registry.plugins import Install, Lazy, Library

_PACKAGE = "windtunnel.assessments.attacks"
LIBRARIES = (
    # Ensembles of the attacks of other libraries.
    Library(name="windtunnel", family="attacks", package=None, rows=Lazy(f"{_PACKAGE}.profiles:ROWS")),
    # Rauber et al. 2020, doi:10.21105/joss.02607: gradient, decision and minimum-norm attacks.
    Library(
        name="foolbox",
        family="attacks",
        package="foolbox",
        rows=Lazy(f"{_PACKAGE}.foolbox.rows:ROWS"),
        adapter=Lazy(f"{_PACKAGE}.foolbox.adapter:perturb"),
        call=Lazy(f"{_PACKAGE}.foolbox.adapter:call_of"),
        imports=("foolbox", "eagerpy"),
        module="foolbox.attacks",
        install=Install("foolbox>=3.3.4", "its attacks, minimum norm and decision-based among them"),
    ),
    # Attacks of the user's own: `library: function`, and the function's reference as the algorithm.
    Library(
        name="function",
        family="attacks",
        package=None,
        rows=Lazy(f"{_PACKAGE}.rows:FUNCTION_ROWS"),
        adapter=Lazy(f"{_PACKAGE}.function:perturb"),
        row_of=Lazy(f"{_PACKAGE}.rows:function_row"),
    ),
    # Kim 2020, arXiv 2010.01950: gradient and score attacks in PyTorch.
    Library(
        name="torchattacks",
        family="attacks",
        package="torchattacks",
        rows=Lazy(f"{_PACKAGE}.torchattacks.rows:ROWS"),
        adapter=Lazy(f"{_PACKAGE}.torchattacks.adapter:perturb"),
        call=Lazy(f"{_PACKAGE}.torchattacks.adapter:call_of"),
        imports=("torchattacks",),
        module="torchattacks",
        install=Install(
            "torchattacks==3.5.1",
            "its attacks, the ensembles quick, standard and exhaustive, the positive control of the sanity checks",
            alone="it pins requests ~=2.25.1, and mlflow needs 2.28 or newer; pip would fall back to 3.3.0 without a word",
            beside=("tqdm", "requests", "scipy"),
        ),
    ),
    # Our own attacks on the parameters of transformations: rotation, brightness, a patch.
    Library(
        name="transformations",
        family="attacks",
        package=None,
        rows=Lazy(f"{_PACKAGE}.transformations.rows:ROWS"),
        adapter=Lazy(f"{_PACKAGE}.transformations.search:perturb"),
        module=f"{_PACKAGE}.transformations.search",
    ),
)
