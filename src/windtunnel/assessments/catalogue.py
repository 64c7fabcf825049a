"""Every algorithm on offer, joined from the records of the families: the one place to look an algorithm up."""

from pydantic import ValidationError

from windtunnel.core.contracts import Algorithm, AssessmentKind
from windtunnel.core.errors import UserError, shown, unfit, unknown_word
from windtunnel.params.entry import Block, Entry
from windtunnel.registry.plugins import families, family_of, libraries, one_line


def algorithms(family: str | None = None) -> tuple[Algorithm, ...]:
    """Return the rows of one family, or of all, in the order of the tables."""
    chosen = [family_of(family)] if family else families().values()
    rows: list[Algorithm] = []
    for record in chosen:
        with one_line(record):
            rows += record.algorithms()
    if strange := [row for row in rows if not isinstance(row, Algorithm)]:
        raise UserError(f"plug-in: algorithms of a family: {shown(strange[0])} is no Algorithm")
    return tuple(rows)


def find_algorithm(library: str, name: str, where: str, family: str) -> Algorithm:
    """Return the registry row of `library`'s `name` in `family`.

    Raises UserError, naming the key `where`, the word and the nearest match, for an unknown library or algorithm.
    """
    record = libraries(family).get(library)
    if record is not None and record.row_of is not None:
        listed = {row.algorithm.name: row.algorithm for row in record.rows()}
        if ":" not in name and name not in listed:
            raise UserError(f"{where}.algorithm: '{name}' is not of the form module:function")
        algorithm: Algorithm = listed[name] if name in listed else record.row_of()(name).algorithm
        return algorithm
    rows = algorithms(family)
    library_names = sorted(
        {row.library for row in rows} | {name for name, other in libraries(family).items() if other.row_of}
    )
    if library not in library_names:
        raise UserError(unknown_word(f"{where}.library", library, library_names, what=f"a library of {family}"))
    by_name = {row.name: row for row in rows if row.library == library}
    if name not in by_name:
        raise UserError(unknown_word(f"{where}.algorithm", name, by_name, what=f"an algorithm of {library}"))
    return by_name[name]


def entry_kind(family: str, name: str, entry: Entry) -> AssessmentKind:
    """Return the assessment kind of an entry, from the registry row of its algorithm."""
    return find_algorithm(entry.library, entry.algorithm, f"{family}.{name}", family).kind


def params_as(schema: type[Block], entry: Entry, where: str) -> Block:
    """Return `params` of an entry as the schema of its algorithm. Raises UserError for an unknown key or an unfit value."""
    for key in entry.params:
        if key not in schema.model_fields:
            what = f"a parameter of {entry.algorithm}"
            raise UserError(unknown_word(f"{where}.params", key, schema.model_fields, what=what))
    try:
        return schema.model_validate(entry.params)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{where}.params.{'.'.join(map(str, first['loc']))}: {unfit(first)}") from error
