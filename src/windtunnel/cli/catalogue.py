"""`windtunnel algorithms` and `windtunnel params`: what params.yaml can say, and what it says."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.tree import Tree

from windtunnel.assessments.catalogue import algorithms as catalogue
from windtunnel.cli.output import headings, print_table, table_console
from windtunnel.core.contracts import Capability, Norm, ThreatModel
from windtunnel.evaluation.validate import validated_params
from windtunnel.params.schema import Params
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.registry.plugins import families
from windtunnel.runtime.credentials import without_credentials

_Schema = Mapping[str, Any]  # JSON Schema that pydantic makes of our blocks
_TYPED = ("family", "library", "algorithm")
_COLUMNS = headings(*_TYPED, "threat model", "norm", "randomness", "requires", "what it is", typed=_TYPED)


@click.command()
@click.option("--family", type=click.Choice(list(families())), help="Only this block of params.yaml.")
@click.option("--library", help="Only this library, for example foolbox.")
@click.option(
    "--norm", type=click.Choice([n.value for n in Norm], case_sensitive=False), help="Only algorithms under this norm."
)
@click.option("--threat-model", type=click.Choice([t.value for t in ThreatModel]), help="Only this threat model.")
@click.option("--requires", type=click.Choice([c.value for c in Capability]), help="Only those that need nothing else.")
def algorithms(
    *, family: str | None, library: str | None, norm: str | None, threat_model: str | None, requires: str | None
) -> None:
    """List every algorithm that params.yaml can name.

    \b
    Examples:
      windtunnel algorithms --library foolbox --norm L2
      windtunnel algorithms --threat-model black_box_decision
      windtunnel algorithms --requires forward       what works on an ONNX file or behind an API
    """  # noqa: D301
    rows = []
    for name in [family] if family else families():
        for row in catalogue(name):
            if (
                (library is None or row.library.lower() == library.lower())
                and (norm is None or row.norm == norm)
                and (threat_model is None or row.threat_model == threat_model)
                and (requires is None or row.requires <= {requires})
            ):
                needs = ", ".join(sorted(row.requires))
                what = row.summary or ", ".join(sorted(row.categories))
                rows.append(
                    (name, row.library, row.name, row.threat_model, row.norm or "-", row.randomness, needs, what)
                )
    print_table(table_console(), _COLUMNS, [("", rows)])
    click.echo(f"{len(rows)} algorithm{'' if len(rows) == 1 else 's'}")


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


def _schema_tree() -> Tree:
    schema = Params.model_json_schema()
    tree = Tree("[bold]params.yaml[/bold]")
    _grow(tree, schema, schema["$defs"])
    return tree


def _grow(tree: Tree, block: _Schema, definitions: _Schema) -> None:
    for key, details in block["properties"].items():
        inner = _definition(details, definitions)
        has_default = "default" in details and not inner
        default = f" [dim]= {json.dumps(details['default'])}[/dim]" if has_default else ""
        text = details.get("description") or (inner or {}).get("description", "")
        branch = tree.add(
            f"[bold]{key}[/bold]: [cyan]{_type(details)}[/cyan]{default}  {text.splitlines()[0] if text else ''}"
        )
        if inner:
            _grow(branch, inner, definitions)


def _definition(details: _Schema, definitions: _Schema) -> _Schema | None:
    """Return the block behind a key: referred to directly, or as the values of a map of the user's names."""
    values = details.get("additionalProperties")
    name = _name(details) or (_name(values) if isinstance(values, Mapping) else "")
    definition = definitions.get(name)
    return definition if definition and definition.get("properties") else None


def _name(details: _Schema) -> str:
    """Return the name of the referenced block; empty where there is none."""
    return str(details.get("$ref", "")).rsplit("/", 1)[-1]


def _type(details: _Schema) -> str:
    if "enum" in details:
        return " | ".join(map(str, details["enum"]))
    if "anyOf" in details:
        return " | ".join(map(_type, details["anyOf"]))
    word: str = details.get("type", "value")
    return _name(details) or {"object": "map", "array": "list", "null": "absent"}.get(word, word)
