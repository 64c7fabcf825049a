"""Examine an installation: what it has, what it lacks, what each would enable, and the exact commands that install it.

torchattacks 3.5.1 and auto-LiRPA 0.3 declare versions of their dependencies beside which nothing of today installs, although
their code runs. No resolver takes them, so no extra of this package can name them: they are installed without their declared
dependencies, by name and when asked. docs/install.md weighs the alternatives.
"""

import importlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from windtunnel.core.errors import InfrastructureError, UserError, unknown_word
from windtunnel.core.references import first_line
from windtunnel.registry.plugins import Install, Library, ModelSource, families, libraries, model_source, model_sources

PACKAGE = "windtunnel"
TESTED = ("3.11", "3.12", "3.13")  # docs/install.md says what was run on each


@dataclass(frozen=True, slots=True)
class Companion:
    """A package beside the declared dependencies. name: as params.yaml or the user calls it."""

    name: str
    install: Install

    @property
    def distribution(self) -> str:
        """The name of the distribution."""
        return Requirement(self.install.requirement).name

    @property
    def version(self) -> str | None:
        """The version that is installed, None where there is none."""
        return installed(self.distribution)

    @property
    def fits(self) -> bool:
        """Return True if the installed version satisfies the requirement and imports."""
        return _satisfied(Requirement(self.install.requirement)) and not (self.install.of_torch and other_build())

    @property
    def has_wheel(self) -> bool:
        """Return True if there is a build for this Python and machine."""
        marker = Requirement(self.install.requirement).marker
        return marker is None or marker.evaluate()


# The extra `pipeline`: without it the Python API, single stages and the report work.
PIPELINE = (
    Companion(
        "dvc", Install("dvc>=3.60", "stages that run when what they depend on changed: repro, sweep", asked=True)
    ),
    Companion("mlflow", Install("mlflow>=3.9", "tracking and the model registry: track, promote, ui", asked=True)),
    Companion("cryptography", Install("cryptography>=42", "signatures of evidence packs", asked=True)),
)
# What no record of a library or of a source of models speaks of.
_OTHERS = (
    *PIPELINE,
    Companion(
        "vnnlib", Install("vnnlib>=1.0.2,<2", "windtunnel vnnlib: properties of the verifiers' competition", asked=True)
    ),
    Companion("ray", Install("ray>=2.40", "assessments on several machines", asked=True)),
    Companion("submitit", Install("submitit>=1.5", "assessments as jobs of Slurm", asked=True)),
    Companion("prefect", Install("prefect>=3", "the schedule of Prefect", asked=True)),
    Companion("psycopg2", Install("psycopg2-binary>=2.9", "an MLflow store in PostgreSQL", asked=True)),
)


def companions() -> tuple[Companion, ...]:
    """Every package beside the declared dependencies: those of the records, plug-ins' among them, and the others."""
    recorded = [library for family in families() for library in libraries(family).values()]
    records: list[Library | ModelSource] = [*recorded, *map(model_source, model_sources())]
    return (*(Companion(record.name, record.install) for record in records if record.install), *_OTHERS)


class InstallCommand(NamedTuple):
    """One command of an installation, and why it is as it is."""

    command: tuple[str, ...]
    why: str


def installed(distribution: str) -> str | None:
    """Return the version of a distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def other_build() -> str:
    """Why the torchvision that is installed does not import, which is a build for another torch; empty where it does."""
    if installed("torchvision") is None:
        return ""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # its native operators raise RuntimeError beside another build of torch
        return (
            f"torchvision {installed('torchvision')} is built for another torch than {_torch()} ({first_line(error)})"
        )
    return ""


def lacking() -> list[str]:
    """Return the declared dependencies that are not installed, or not in a version that fits, as pip writes them."""
    try:
        declared = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"doctor: {PACKAGE} is not installed, it only lies on Python's path; pip install it") from None
    apart = {canonicalize_name(companion.distribution) for companion in companions()}
    return [
        str(requirement)
        for requirement in map(Requirement, declared)
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        and canonicalize_name(requirement.name) not in apart
        and not _satisfied(requirement)
    ]


def chosen(names: Iterable[str]) -> list[Companion]:
    """Return the companions of these names; without names all that are missing, have a wheel here, and need not be asked for.

    Raises UserError, with the nearest match, for a name that is none, and for one that has no wheel here.
    """
    by_name = {companion.name.lower(): companion for companion in companions()}
    selected = []
    for name in names:
        if name.lower() not in by_name:
            raise UserError(unknown_word("doctor --install", name, [c.name for c in companions()], what="a package"))
        if not (companion := by_name[name.lower()]).has_wheel:
            raise UserError(f"doctor --install: {companion.name} has no build for {machine()}; leave out what needs it")
        selected.append(companion)
    if not selected:
        selected = [companion for companion in companions() if companion.has_wheel and not companion.install.asked]
    return [companion for companion in selected if not companion.fits]


def steps(companions: Iterable[Companion]) -> list[InstallCommand]:
    """Return the commands that install these: with dependencies, without, and beside the torch that is here, at most one of each.

    Raises UserError without pip or uv.
    """
    missing = list(companions)
    alone = [companion for companion in missing if companion.install.alone]
    plain = [_requirement(c) for c in missing if not c.install.alone and not c.install.of_torch]
    plain += [need for companion in alone for need in companion.install.beside if installed(need) is None]
    result = []
    if alone:
        why = "without their declared dependencies: " + "; ".join(f"{c.name}: {c.install.alone}" for c in alone)
        result.append(InstallCommand((*_installer(), "--no-deps", *(c.install.requirement for c in alone)), why))
    if plain:
        result.append(InstallCommand((*_installer(), *plain), "with what they declare, as pip resolves it"))
    if of_torch := [companion for companion in missing if companion.install.of_torch]:
        result.append(_beside_torch(of_torch))
    return result


def _beside_torch(companions: list[Companion]) -> InstallCommand:
    """Torchvision is built for one torch: pip would take the newest, and bring another torch with it."""
    version, _, build = _torch().partition("+")
    requirements = dict.fromkeys(part for c in companions for part in (*c.install.beside, _requirement(c)))
    # PyPI has one build of each version; the others, such as the one without CUDA, are on PyTorch's own index.
    index = ("--extra-index-url", f"https://download.pytorch.org/whl/{build}") if build else ()
    why = f"torch stays {_torch()}, and torchvision is built for one torch" + (
        f"; PyPI has no torchvision for the build {build}" if build else ""
    )
    newer = ("--upgrade",) if other_build() else ()
    return InstallCommand((*_installer(), *newer, *index, *requirements, f"torch=={version}"), why)


def _requirement(companion: Companion) -> str:
    return str(Requirement(companion.install.requirement)).partition(";")[0].strip()


def _torch() -> str:
    """Torch's version with its build, such as 2.13.0+cpu."""
    return installed("torch") or "none"


def run(step: InstallCommand) -> None:
    """Run one command, its output on ours. Raises InfrastructureError where it fails."""
    done = subprocess.run(step.command, check=False)
    if done.returncode:
        raise InfrastructureError(f"doctor: {shown(step.command)}: ended with exit code {done.returncode}; see above")
    importlib.invalidate_caches()


def shown(command: Iterable[str]) -> str:
    """Return a command as one types it."""
    return " ".join(f"'{part}'" if set(part) & set("<>;' ") else part for part in command)


def untested() -> str:
    """Return why this Python may lack something; empty where whole runs were tried on it."""
    python = ".".join(platform.python_version_tuple()[:2])
    if python in TESTED:
        return ""
    without = ", ".join(companion.name for companion in companions() if not companion.has_wheel)
    return f"Python {python} is untested (tested: {', '.join(TESTED)})" + (
        f"; no build for it: {without}" if without else ""
    )


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
    version = installed(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)
