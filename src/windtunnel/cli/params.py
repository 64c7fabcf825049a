"""`windtunnel params`: the schema as documentation, or the effective values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from rich.console import Console
from rich.tree import Tree

from windtunnel.evaluation.validate import validated_params
from windtunnel.params.schema import Params
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.runtime.credentials import without_credentials


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
    if schema and not as_json:
        Console().print(_schema_tree())
        return
    content = Params.model_json_schema() if schema else validated_params(path).model_dump(mode="json")
    if as_json:
        click.echo(without_credentials(json.dumps(content, indent=2)))
    else:
        Console().print_json(without_credentials(json.dumps(content)))


class _Node(BaseModel):
    """A node of the JSON Schema that pydantic makes of our blocks, as far as the tree shows it."""

    model_config = ConfigDict(populate_by_name=True)

    reference: str = Field("", alias="$ref")
    type: str = "value"
    description: str = ""
    default: JsonValue = None
    enum: tuple[JsonValue, ...] = ()
    any_of: tuple[_Node, ...] = Field((), alias="anyOf")
    properties: dict[str, _Node] = Field(default_factory=dict)
    extra: _Node | bool = Field(default=False, alias="additionalProperties")
    definitions: dict[str, _Node] = Field(default_factory=dict, alias="$defs")

    @property
    def name(self) -> str:
        """Return the name of the referenced block; empty where there is none."""
        return self.reference.rsplit("/", 1)[-1]


def _schema_tree() -> Tree:
    schema = _Node.model_validate(Params.model_json_schema())
    tree = Tree("[bold]params.yaml[/bold]")
    _grow(tree, schema, schema.definitions)
    return tree


def _grow(tree: Tree, node: _Node, definitions: Mapping[str, _Node]) -> None:
    for key, details in node.properties.items():
        inner = _definition(details, definitions)
        has_default = "default" in details.model_fields_set and not inner
        default = f" [dim]= {json.dumps(details.default)}[/dim]" if has_default else ""
        text = details.description or (inner.description if inner else "")
        branch = tree.add(
            f"[bold]{key}[/bold]: [cyan]{_type(details)}[/cyan]{default}  {text.splitlines()[0] if text else ''}"
        )
        if inner:
            _grow(branch, inner, definitions)


def _definition(details: _Node, definitions: Mapping[str, _Node]) -> _Node | None:
    """Return the block behind a key: referred to directly, or as the values of a map of the user's names."""
    of_values = details.extra.name if isinstance(details.extra, _Node) else ""
    definition = definitions.get(details.name or of_values)
    return definition if definition and definition.properties else None


def _type(details: _Node) -> str:
    if details.enum:
        return " | ".join(map(str, details.enum))
    if details.any_of:
        return " | ".join(map(_type, details.any_of))
    return details.name or {"object": "map", "array": "list", "null": "absent"}.get(details.type, details.type)
