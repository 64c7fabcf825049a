"""All corruptions of all libraries, and the selection of an entry."""

from collections.abc import Iterable

from windtunnel.assessments.corruptions.rows import (
    COMMON,
    CUSTOM,
    IMAGECORRUPTIONS,
    CorruptionRow,
    folder_row,
    function_row,
)
from windtunnel.boundary.data.corrupted import corruption_folders
from windtunnel.core.contracts import Algorithm
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.corruptions import FOLDER, FUNCTION, CorruptionEntry
from windtunnel.registry.plugins import rows_of

ROWS: dict[tuple[str, str], CorruptionRow] = {row.algorithm.key: row for row in rows_of("corruptions")}
ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())


def corruptions_of(entry: CorruptionEntry, where: str) -> dict[str, CorruptionRow]:
    """Return the corruptions of an entry by their name in results, each once.

    Raises UserError for a word that is none, and for two functions of one name.
    """
    names = entry.corruptions or (entry.algorithm,)
    if entry.library == FUNCTION:
        return _functions(names, where)
    of_library = {name: row for (library, name), row in ROWS.items() if library == entry.library}
    folders = corruption_folders(entry.path or "", f"{where}.path") if entry.library == FOLDER else ()
    rows: dict[str, CorruptionRow] = {}
    for word in names:
        if word in folders:
            rows[word] = folder_row(word)
        elif entry.library == FOLDER and word == "all":
            rows |= {name: folder_row(name) for name in folders}
        elif word not in of_library or (
            entry.library == FOLDER and not set(of_library[word].corruptions) <= {*folders}
        ):
            choices = [*folders, *(name for name in of_library if not folders or name == "all")]
            raise UserError(
                unknown_word(f"{where}.corruptions", word, choices, what="a corruption or a category of them")
            )
        else:
            members = of_library[word].corruptions
            rows |= {name: folder_row(name) if folders else of_library[name] for name in members or (word,)}
    return rows


def _functions(references: Iterable[str], where: str) -> dict[str, CorruptionRow]:
    rows: dict[str, CorruptionRow] = {}
    for reference in references:
        name = reference.partition(":")[2]
        if not name:
            raise UserError(f"{where}.algorithm: '{reference}' is not of the form module:function")
        if name in rows:
            raise UserError(
                f"{where}.corruptions: two functions are called {name}; their results need names of their own"
            )
        rows[name] = function_row(reference)
    return rows


def category_of(library: str, corruption: str) -> str:
    """Return the category of a corruption by its name in results: noise, blur, weather ...; custom for one of the user's."""
    row = folder_row(corruption) if library == FOLDER else ROWS.get((library, corruption))
    return row.category if row else CUSTOM


def common_of(library: str, names: Iterable[str]) -> frozenset[str]:
    """Return the corruptions over which mCE is the mean: the 15 of ImageNet-C, or all of a suite that is not of ImageNet-C."""
    names = frozenset(names)
    common = names & frozenset(COMMON) if library in (IMAGECORRUPTIONS, FOLDER) else names
    return common or (names if library == FOLDER else common)
