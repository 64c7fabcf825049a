"""All visualisers, and those of an entry. Apart from the catalogue, since looking up an algorithm needs no drawing code."""

from windtunnel.assessments.catalogue import entry_kind
from windtunnel.assessments.figures.base import Visualiser, make_visualiser
from windtunnel.core.references import load_object
from windtunnel.params.entry import Entry
from windtunnel.registry.plugins import families, family_of, load_modules

CLEAN_FIGURES = "windtunnel.assessments.clean.figures"  # clean is no family: it has no entries


def register_figures() -> None:
    """Make the visualisers of every family known: importing a family's figures registers them."""
    for module in (CLEAN_FIGURES, *(family.figures for family in families().values())):
        load_object(module)
    load_modules("windtunnel.figures")


def visualisers_of(family: str, name: str, entry: Entry) -> list[Visualiser]:
    """Return the visualisers of an entry, or its family's defaults. Raises UserError for a name, option or kind that is off."""
    register_figures()
    kind = entry_kind(family, name, entry)
    defaults = entry.visualisers_by_default(family_of(family).visualisers)
    specs = entry.visualisers if entry.visualisers is not None else list(defaults)
    return [make_visualiser(spec, kind, family, f"{family}.{name}.visualisers") for spec in specs]
