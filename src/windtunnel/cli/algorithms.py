"""`windtunnel algorithms`: the catalogue as a table."""

from __future__ import annotations

import click

from windtunnel.assessments.catalogue import algorithms as catalogue
from windtunnel.cli.tables import headings, print_table, table_console
from windtunnel.core.contracts import Capability, Norm, ThreatModel
from windtunnel.registry.plugins import families

_TYPED = ("family", "library", "algorithm")
_COLUMNS = headings(*_TYPED, "threat model", "norm", "randomness", "requires", "what it is", typed=_TYPED)


@click.command()
@click.option("--family", type=click.Choice(list(families())), help="Only this block of params.yaml.")
@click.option("--library", help="Only this library, for example foolbox.")
@click.option("--norm", type=click.Choice([n.value for n in Norm]), help="Only algorithms under this norm.")
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
    groups: dict[str, list[tuple[str, ...]]] = {}
    count = 0
    for name in [family] if family else families():
        for row in catalogue(name):
            conditions = (
                (library is None or row.library.lower() == library.lower())
                and (norm is None or row.norm == norm)
                and (threat_model is None or row.threat_model == threat_model)
                and (requires is None or row.requires <= {requires})
            )
            if conditions:
                count += 1
                needs = ", ".join(sorted(row.requires))
                what = row.summary or ", ".join(sorted(row.categories))
                groups.setdefault(name, []).append(
                    (name, row.library, row.name, row.threat_model, row.norm or "-", row.randomness, needs, what)
                )
    print_table(table_console(), _COLUMNS, [("", rows) for rows in groups.values()])
    click.echo(f"{count} algorithm{'' if count == 1 else 's'}")
