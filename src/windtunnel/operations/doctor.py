"""What an installation has, what it lacks, what each would enable, and the exact commands that install it.

torchattacks 3.5.1 and auto-LiRPA 0.3 declare versions of their dependencies beside which nothing of today installs, although
their code runs. No resolver takes them, so no extra of this package can name them: they are installed without their declared
dependencies, by name and when asked. docs/install.md weighs the alternatives.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from windtunnel.core.errors import InfrastructureError, UserError, unknown_word

PACKAGE = "windtunnel"


@dataclass(frozen=True, slots=True)
class Companion:
    """A package beside the declared dependencies.

    name: as params.yaml or the user calls it. requirement: what pip is asked for, with a marker where it has no wheels
    everywhere. enables: what works with it. alone: why its own dependencies must stay out; empty where pip may resolve it. needs: what
    its code imports all the same, and our own dependencies do not bring. asked: installed only where it is named.
    """

    name: str
    requirement: str
    enables: str
    alone: str = ""
    needs: tuple[str, ...] = ()
    asked: bool = False

    @property
    def distribution(self) -> str:
        """The name of the distribution."""
        return Requirement(self.requirement).name

    @property
    def version(self) -> str | None:
        """The version that is installed, None where there is none."""
        return installed(self.distribution)

    @property
    def fits(self) -> bool:
        """Whether what is installed is of a version asked for."""
        found = self.version
        return found is not None and Requirement(self.requirement).specifier.contains(found, prereleases=True)

    @property
    def has_wheel(self) -> bool:
        """Whether there is a build for this Python and machine."""
        marker = Requirement(self.requirement).marker
        return marker is None or marker.evaluate()


COMPANIONS = (
    Companion(
        "torchattacks",
        "torchattacks==3.5.1",
        "its attacks, the ensembles quick, standard and exhaustive, the positive control of the sanity checks",
        alone="it pins requests ~=2.25.1, and mlflow needs 2.28 or newer; pip would fall back to 3.3.0 without a word",
        needs=("tqdm", "requests", "scipy"),
    ),
    Companion(
        "auto-LiRPA",
        "auto-LiRPA==0.3",
        "verification by bounds (ibp, crown, alpha-crown, L2), and every cascade that has such a step",
        alone="it pins torch <1.13 and torchvision <0.14; its code runs on torch 2 with three shims of ours",
        needs=("appdirs",),
    ),
    Companion(
        "Marabou",
        'maraboupy>=2.0; python_version < "3.12" and platform_machine == "x86_64" and sys_platform != "win32"',
        "the complete solver, and the last step of a cascade",
    ),
    Companion("foolbox", "foolbox>=3.3.4", "its attacks, minimum norm and decision-based among them"),
    Companion("imagecorruptions", "imagecorruptions>=1.1.2", "the common corruptions"),
    Companion(
        "onnx2torch",
        "onnx2torch==1.5.15",
        "attacks and bounds on ONNX models",
        alone="it asks for torchvision, which it uses for two operators of object detection",
    ),
    Companion("torchvision", "torchvision>=0.23", "models of torchvision", asked=True),
    Companion("timm", "timm>=1.0.15", "models of timm", asked=True),
    Companion("huggingface", "transformers>=5", "image classifiers of Hugging Face", asked=True),
    Companion("ray", "ray>=2.40", "assessments on several machines", asked=True),
    Companion("prefect", "prefect>=3", "the schedule of Prefect", asked=True),
    Companion("psycopg2", "psycopg2-binary>=2.9", "an MLflow store in PostgreSQL", asked=True),
)


class Step(NamedTuple):
    """One command of an installation, and why it is as it is."""

    command: tuple[str, ...]
    why: str


def installed(distribution: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def lacking() -> list[str]:
    """The declared dependencies that are not installed, or not in a version that fits, as pip writes them."""
    try:
        declared = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"doctor: {PACKAGE} is not installed, it only lies on Python's path; pip install it") from None
    apart = {canonicalize_name(companion.distribution) for companion in COMPANIONS}
    return [
        str(requirement)
        for requirement in map(Requirement, declared)
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        and canonicalize_name(requirement.name) not in apart
        and not _satisfied(requirement)
    ]


def chosen(names: Iterable[str]) -> list[Companion]:
    """The companions of these names; without names all that are missing, have a wheel here, and need not be asked for.

    Raises UserError, with the nearest match, for a name that is none, and for one that has no wheel here.
    """
    known = {companion.name.lower(): companion for companion in COMPANIONS}
    wanted = []
    for name in names:
        if name.lower() not in known:
            raise UserError(unknown_word("doctor --install", name, [c.name for c in COMPANIONS], what="a package"))
        if not (companion := known[name.lower()]).has_wheel:
            raise UserError(f"doctor --install: {companion.name} has no build for {machine()}; leave out what needs it")
        wanted.append(companion)
    if not wanted:
        wanted = [companion for companion in COMPANIONS if companion.has_wheel and not companion.asked]
    return [companion for companion in wanted if not companion.fits]


def steps(companions: Iterable[Companion]) -> list[Step]:
    """The commands that install these, at most one with dependencies and one without. Raises UserError without pip or uv."""
    found = list(companions)
    alone = [companion for companion in found if companion.alone]
    plain = [str(Requirement(c.requirement)).partition(";")[0].strip() for c in found if not c.alone]
    plain += [need for companion in alone for need in companion.needs if installed(need) is None]
    result = []
    if alone:
        why = "without their declared dependencies: " + "; ".join(f"{c.name}: {c.alone}" for c in alone)
        result.append(Step((*_installer(), "--no-deps", *(c.requirement for c in alone)), why))
    if plain:
        result.append(Step((*_installer(), *plain), "with what they declare, as pip resolves it"))
    return result


def run(step: Step) -> None:
    """Run one command, its output on ours. Raises InfrastructureError where it fails."""
    done = subprocess.run(step.command, check=False)
    if done.returncode:
        raise InfrastructureError(f"doctor: {shown(step.command)}: ended with exit code {done.returncode}; see above")
    importlib.invalidate_caches()


def shown(command: Iterable[str]) -> str:
    """A command as one types it."""
    return " ".join(f"'{part}'" if set(part) & set("<>;' ") else part for part in command)


def machine() -> str:
    """Python's version, the system and the processor, as wheels distinguish them."""
    return f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"


def _installer() -> tuple[str, ...]:
    # Asked by its metadata: to look for the module would make setuptools refuse to be imported in this process.
    if installed("pip") is not None:
        return (sys.executable, "-m", "pip", "install")
    if uv := shutil.which("uv"):  # an environment of uv's has no pip
        return (uv, "pip", "install", "--python", sys.executable)
    raise UserError(f"doctor: neither pip nor uv is here to install with; {sys.executable} -m ensurepip brings pip")


def _satisfied(requirement: Requirement) -> bool:
    found = installed(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)
