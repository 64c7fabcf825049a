"""Hook of mkdocs: pages of the handbook that the code knows best, made when it is built."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from windtunnel.cli.main import COMMANDS, cli
from windtunnel.core.contracts import Json
from windtunnel.evaluation.summary.meanings import every_meaning
from windtunnel.params.schema import Params


class ExcludedTargets(logging.Filter):
    """Raises to a warning, which fails the strict build, what mkdocs says of a link to a file that it leaves out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the level of the record in place; drop nothing."""
        if "excluded from the built site" in record.getMessage():
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def on_startup(**_: object) -> None:
    """Install the filter where mkdocs resolves links."""
    logging.getLogger("mkdocs.structure.pages").addFilter(ExcludedTargets())


SHIM = re.compile(r'<script src="https://[^"]*iframe-worker/shim"></script>')


def on_post_page(output: str, **_: object) -> str:
    """Return the page with the script for its search from disk inside it, where the theme asks a server for one."""
    script = (Path(__file__).parent / "frame_worker.js").read_text()
    return SHIM.sub(lambda _: f"<script>\n{script}</script>", output)


on_post_template = on_post_page  # 404.html is a template, no page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, text in (
        ("reference/params.md", params_page()),
        ("reference/metrics.md", metrics_page()),
        ("reference/cli.md", cli_page()),
    ):
        files.append(File.generated(config, name, content=text))
    return files


def params_page() -> str:
    """Every key of params.yaml, block by block, from the schema."""
    schema: dict[str, Any] = Params.model_json_schema()
    blocks = {"params.yaml": schema, **schema["$defs"]}
    parts = [
        "# params.yaml\n\nAfter this page you can look up every key.\n",
        "They come from the schema itself: `windtunnel params --schema` prints the same,",
        "`windtunnel params --schema --json` is JSON Schema for editors that complete and check. A number may be written as a",
        "fraction: `8/255`.\n",
    ]
    for name, block in blocks.items():
        if "properties" in block:
            parts += [f"\n## {name}\n", f"{_line(block.get('description', ''))}\n", *_rows(block["properties"])]
    return "\n".join(parts) + "\n"


def _rows(properties: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
    for key, details in properties.items():
        default = f"`{json.dumps(details['default'])}`" if details.get("default") is not None else ""
        yield f"| `{key}` | {_type(details)} | {default} | {_line(details.get('description', ''))} |"


def _type(details: Mapping[str, Any]) -> str:
    if "enum" in details:
        return ", ".join(f"`{word}`" for word in details["enum"])
    if "const" in details:
        return f"`{details['const']}`"
    if "anyOf" in details:
        return " or ".join(dict.fromkeys(_type(option) for option in details["anyOf"] if option.get("type") != "null"))
    if "$ref" in details:
        name = str(details["$ref"]).rsplit("/", 1)[-1]
        block = Params.model_json_schema()["$defs"][name]
        return f"[{name}](#{name.lower()})" if "properties" in block else _type(block)
    if isinstance(inner := details.get("additionalProperties"), Mapping):
        return f"map of {_type(inner)}"
    if details.get("type") == "array" and isinstance(details.get("items"), Mapping):
        return f"list of {_type(details['items'])}"
    return str(details.get("type", "value"))


def metrics_page() -> str:
    """Return what the abbreviations among the metrics stand for."""
    rows = [f"| `{name}` | {_line(text)} |" for name, text in every_meaning().items()]
    head = "# Metrics\n\nAfter this page you can read the names of metrics.\n\n"
    head += "Names that do not speak for themselves; every accuracy and rate has `_ci_low` and `_ci_high`"
    return (
        "\n".join([head, "beside it, the Wilson 95 % interval.\n", "| metric | meaning |\n| --- | --- |", *rows]) + "\n"
    )


def cli_page() -> str:
    """Every command, as `--help` has it."""
    parts = ["# The command line\n\nAfter this page you can look up every command and option.\n"]
    for name in ("", *COMMANDS):
        context = click.Context(cli, info_name="windtunnel", terminal_width=100)
        command: click.Command | None = cli
        if name:
            command = cli.get_command(context, name)
            context = click.Context(cast(click.Command, command), context, name, terminal_width=100)
        text = cast(click.Command, command).get_help(context)
        parts.append(f"## {name or 'windtunnel'}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _line(text: Json) -> str:
    return str(text).split("\n\n")[0].replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
