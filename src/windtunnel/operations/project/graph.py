"""dvc.yaml, written from the records of the families: one graph for this repository, for any other, and for plug-ins."""

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, Template

from windtunnel.boundary.text import yaml_text
from windtunnel.registry.plugins import families


def graph_text(params: Mapping[str, object]) -> str:
    """dvc.yaml for a params.yaml of this content. Files that it names are dependencies, so that the stages that make them come first."""
    records = list(families().values())
    # Not called dvc.yaml, which DVC would take for a pipeline of this repository.
    return template("graph.yaml").render(
        families=records,
        first_generative=next((family for family in records if family.generators), None),
        data=_files(params, "data", ("path", "labels", "train_path", "train_labels")),
        model=_files(params, "model", ("path",)),
        generators=_files(params, "generators", ("path",)),
    )


def _files(params: Mapping[str, object], block: str, keys: tuple[str, ...], above: str = "") -> list[str]:
    """Return the files that a block of params.yaml names, as DVC refers to them: another path there needs no other dvc.yaml."""
    content = params.get(block)
    named = content if isinstance(content, Mapping) else {}
    files = [f"${{{above}{block}.{key}}}" for key in keys if named.get(key) and named[key] != "none"]
    return files if above else [*files, *_files(named, "twin", ("path",), f"{block}.")]


def template(name: str) -> Template:
    """Return the template of a file of a project; its filter `scalar` writes a value as YAML on one line."""
    loader = PackageLoader("windtunnel.operations.project")
    environment = Environment(
        loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["scalar"] = yaml_scalar
    return environment.get_template(name)


def yaml_scalar(value: object) -> str:
    """Return a value as YAML writes it on one line."""
    return yaml_flow(value) if isinstance(value, dict) else yaml_flow([value])[1:-1]


def yaml_flow(value: object) -> str:
    """Return a list or a map as YAML writes it on one line, in brackets."""
    return yaml_text(value, plain=True, default_flow_style=True, width=10_000).strip()
