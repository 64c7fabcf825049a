"""Errors for the user: one line with the key or file, the value, what is allowed and the nearest match."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from unicodedata import category

USER_ERROR = 2
INFRASTRUCTURE = 30

# What is wanted, by the beginning of pydantic's name for an error.
_KINDS = {
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "dataclass_type"), "a map of keys"),
    "string_type": "text",
    "path_type": "a path",
    "int_": "a whole number",
    "float_": "a number",
    "bool_": "true or false",
}
LONGEST_LINE, MOST_LINES = 900, 20  # of a message: what comes from outside may be repeated in it


class UserError(Exception):
    """Something the user can fix. The command line prints its one line and exits with code 2, no traceback."""

    def __str__(self) -> str:
        """Return the message, printable in any encoding; of a long line the start and the end, of many lines the first."""
        lines = [_printable(line) for line in super().__str__().split("\n")]
        half = LONGEST_LINE // 2 - 10
        short = [line if len(line) <= LONGEST_LINE else f"{line[:half]} [...] {line[-half:]}" for line in lines]
        return "\n".join(
            [*short[:MOST_LINES], *([f"and {len(lines) - MOST_LINES} lines more"] if lines[MOST_LINES:] else [])]
        )


class IncompatibleError(UserError):
    """An algorithm, a model and a data set that do not go together."""


class UnsoundError(UserError):
    """A result that must not be believed, found while it was computed."""


class PrerequisiteError(UserError):
    """A result of another stage that is not there, or is of other params: nothing can be computed, or recorded, before it is."""


class InfrastructureError(UserError):
    """Something outside did not do its part: a server, a lock, a stage that failed. Exit code 30 in place of 2."""


def nearest(unknown: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed word most like `unknown`, ignoring case; None if none is close."""
    by_lower = {word.lower(): word for word in allowed}
    matches = get_close_matches(unknown.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def _printable(line: str) -> str:
    """Return the line with control characters, line separators and what no encoding has as escapes."""
    odd = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return line if line.isprintable() else "".join(ascii(c)[1:-1] if category(c) in odd else c for c in line)


def shown(value: object) -> str:
    """Return a value as one line of bounded length, whatever it is; `repr` of it may fail."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception as error:  # an integer of too many digits, or an object of a user's
        text = f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    if not isinstance(value, str):  # a tensor's has many lines
        text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 100 else f"{text[:60]}... ({len(text)} characters)"


def unknown_word(where: str, unknown: str, allowed: Iterable[str], *, what: str = "known", most: int = 12) -> str:
    """Return the line for a word that is not among the allowed ones, with the nearest of them and `most` of all."""
    choices = list(allowed)
    if not choices:
        return f"{where}: {shown(unknown)} is not {what}; there is none"
    near = nearest(unknown[:200], choices)
    hint = f" Did you mean '{near}'?" if near else ""
    listed = ", ".join(choices[:most]) + (f", ... ({len(choices)} in all)" if len(choices) > most else "")
    return f"{where}: {shown(unknown)} is not {what}.{hint} Allowed: {listed}"


def unfit(details: Mapping[str, object]) -> str:
    """Return why a value does not fit, from one of pydantic's errors: `3 is not a list`, or its own words of a range."""
    kind, message = str(details["type"]), str(details["msg"]).removeprefix("Value error, ")
    expected = next((name for start, name in _KINDS.items() if kind.startswith(start)), None)
    if expected:
        value = shown(details["input"])
        return f"{value} is not {expected}" + (f"; write [{value}]" if expected == "a list" else "")
    if kind == "value_error":
        return message
    got = "" if kind == "missing" else f", got {shown(details['input'])}"
    return f"{message[0].lower()}{message[1:]}{got}"


class OutOfTimeError(Exception):
    """The time that a computation was given is over."""
