"""`windtunnel params`: the schema as documentation, or the effective values."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.tree import Tree

from windtunnel.core.contracts import Json
from windtunnel.core.credentials import without_credentials
from windtunnel.core.layout import PARAMS_FILE
from windtunnel.evaluation.validate import validated_params
from windtunnel.params.schema import Params


@click.command()
@click.option("--schema", is_flag=True, help="Print every key with its type, default and meaning.")
@click.option("--json", "as_json", is_flag=True, help="As JSON (with --schema: JSON Schema, for editors).")
@click.option("--params", "path", type=click.Path(path_type=Path), default=PARAMS_FILE, show_default=True)
def params(*, schema: bool, as_json: bool, path: Path) -> None:
    """Show the schema of params.yaml, or its values with the defaults filled in.

    \b
    Examples:
      windtunnel params                     the effective values
      windtunnel params --schema            every key, documented
      windtunnel params --schema --json     JSON Schema, for editors that complete and check YAML
    """  # noqa: D301
    content: dict[str, Json] = Params.model_json_schema() if schema else validated_params(path).model_dump(mode="json")
    if as_json:
        click.echo(without_credentials(json.dumps(content, indent=2)))
    elif schema:
        Console().print(_schema_tree(content))
    else:
        Console().print_json(without_credentials(json.dumps(content)))


def _schema_tree(schema: dict[str, Json]) -> Tree:
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, dict)
    tree = Tree("[bold]params.yaml[/bold]")
    _grow(tree, schema, definitions)
    return tree


def _grow(tree: Tree, node: dict[str, Json], definitions: dict[str, Json]) -> None:
    properties = node.get("properties", {})
    assert isinstance(properties, dict)
    for key, details in properties.items():
        assert isinstance(details, dict)
        inner = _definition(details, definitions)
        default = f" [dim]= {json.dumps(details['default'])}[/dim]" if "default" in details and not inner else ""
        text = details.get("description") or (inner or {}).get("description") or ""
        branch = tree.add(
            f"[bold]{key}[/bold]: [cyan]{_type(details)}[/cyan]{default}  {str(text).splitlines()[0] if text else ''}"
        )
        if inner:
            _grow(branch, inner, definitions)


def _definition(details: dict[str, Json], definitions: dict[str, Json]) -> dict[str, Json] | None:
    """The block behind a key: referred to directly, or as the values of a map of the user's names."""
    reference = details.get("$ref")
    extra = details.get("additionalProperties")
    if reference is None and isinstance(extra, dict):
        reference = extra.get("$ref")
    found = definitions.get(str(reference).rsplit("/", 1)[-1]) if reference else None
    return found if isinstance(found, dict) and "properties" in found else None


def _type(details: dict[str, Json]) -> str:
    if "enum" in details:
        return " | ".join(map(str, details["enum"]))  # type: ignore[arg-type]  # JSON Schema: a list
    if "anyOf" in details:
        return " | ".join(_type(option) for option in details["anyOf"])  # type: ignore[union-attr,arg-type]
    if "$ref" in details:
        return str(details["$ref"]).rsplit("/", 1)[-1]
    kind = str(details.get("type", "value"))
    return {"object": "map", "array": "list", "null": "absent"}.get(kind, kind)
