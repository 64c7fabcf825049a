"""Remove user names, passwords and tokens from addresses before they are shown, logged or packed."""

import os
import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from windtunnel.runtime.missing_package import missing_package

# Variables of clients of MLflow and of object stores; the text of a client's error may repeat them.
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
_SHORTEST = 4  # characters; a shorter secret would be found in unrelated words
_SCHEME = re.compile(r"(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://")
_KEY = r"(?:[a-z0-9_.-]*(?:password|passwd|passphrase|pwd|token|secret|signature|credentials?|key)|sig|auth)"
_SECRET_KEY = re.compile(rf"(?i){_KEY}|odbc_connect")
_IN_TEXT = re.compile(rf"(?i)([?&;]{_KEY}=)[^&;\s\"'<>]+")
_CONNECTION_STRING = re.compile(r"(?i)(\bodbc_connect=)[^\n]*")
# `user:password@`; the user name of a database holds no colon and no slash, the password may hold anything.
_PASSWORD = re.compile(r"[^:/?#@\s]*:.*@", re.DOTALL)
_TOKEN = re.compile(r"[^/?#\s\"'<>]*@")
_PORT = re.compile(r"[^:/?#@\s]*:\d{1,5}(?:[/?#\s\"'<>)]|$)")


def reason_of(error: BaseException, at_most: int = 200) -> str:
    """Return the text of an error as one line without credentials, cut only afterwards."""
    return " ".join(without_credentials(str(missing_package(error) or error)).split())[:at_most]


def reason_at(address: str, error: BaseException) -> str:
    """Return what went wrong at an address (of a tracking store, a registry) as one line without credentials."""
    return f"{without_credentials(address)}: {type(error).__name__}: {reason_of(error)}"


def without_credentials(text: str) -> str:
    """Return `text` without the credentials of every address in it, nor those of the environment.

    A text that begins with `scheme://` is one address, whose password may hold any character. In other text a password
    ends at the last `@` of its line: rather too much is removed than too little.
    """
    starts = [match.start() for match in _SCHEME.finditer(text)]
    if starts and starts[0] == 0 and (len(starts) == 1 or _PASSWORD.match(text.partition("://")[2])):
        text = _address(text)
    elif starts:
        parts = (text[start:end] for start, end in pairwise([*starts, len(text)]))
        text = text[: starts[0]] + "".join(_mention(part) for part in parts)
    text = _IN_TEXT.sub(r"\1***", _CONNECTION_STRING.sub(r"\1***", text))
    for secret in _secrets_of_environment():
        text = text.replace(secret, "***")
    return text


def secrets_in(address: str) -> set[str]:
    """Return the passwords and tokens of an address, as written and as decoded by SQLAlchemy and urllib."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    secrets: set[str] = set()
    try:
        parsed = make_url(address)
        secrets |= {str(parsed.password or "")}
        secrets |= {
            text
            for key, value in parsed.query.items()
            if _SECRET_KEY.fullmatch(key)
            for text in (value if isinstance(value, tuple) else (value,))
        }
    except (ArgumentError, ValueError):
        pass
    try:
        split = urlsplit(address)
        secrets |= {split.password or ""}
        secrets |= {value for key, value in parse_qsl(split.query) if _SECRET_KEY.fullmatch(key)}
    except ValueError:  # a password that urllib takes for the brackets of an IPv6 address
        pass
    rest = address.partition("://")[2]
    if (match := _PASSWORD.match(rest)) and not _is_port(address, rest):
        secrets.add(match[0].partition(":")[2][:-1])
    elif match := _TOKEN.match(rest):
        secrets.add(match[0][:-1])
    for text in list(secrets):  # an ODBC connection string holds its password among harmless settings
        secrets |= {
            value
            for key, _, value in (part.partition("=") for part in text.split(";"))
            if _SECRET_KEY.fullmatch(key.strip())
        }
    secrets |= {unquote(text) for text in secrets}
    return {text for text in secrets if text}


def without_secrets(text: str, secrets: set[str]) -> str:
    """Return `text` with each secret, however it is encoded, replaced by `***`."""
    spellings = {form for secret in secrets for form in (secret, quote(secret, safe=""), quote(secret), escape(secret))}
    for form in sorted(spellings, key=len, reverse=True):
        if len(form) >= _SHORTEST:
            text = text.replace(form, "***")
    return text


def _secrets_of_environment() -> Iterator[str]:
    values = [os.environ.get(name, "") for name in _SECRETS]
    for name in _ADDRESSES:
        if "@" in (address := os.environ.get(name, "")):
            values += sorted(secrets_in(address), key=len, reverse=True)
    yield from (value for value in values if len(value) >= _SHORTEST)


def _is_port(address: str, rest: str) -> bool:
    """Return True for `http://host:5000/...`; a database may have a password that begins like that."""
    return address[:4].lower() == "http" and bool(_PORT.match(rest))


def _address(address: str) -> str:
    """Return a whole address without its credentials."""
    scheme, _, rest = address.partition("://")
    if not _is_port(address, rest) and (match := _PASSWORD.match(rest) or _TOKEN.match(rest)):
        if _IN_TEXT.search(match[0]) or _CONNECTION_STRING.search(
            match[0]
        ):  # the @ may belong to a secret of the query
            return f"{scheme}://***"
        rest = rest[match.end() :]
    head, mark, query = rest.partition("?")
    query, hash_mark, fragment = query.partition("#")
    pairs = [part.partition("=") for part in query.split("&")]
    query = "&".join(
        f"{key}=***" if equals and _SECRET_KEY.fullmatch(unquote(key)) else f"{key}{equals}{value}"
        for key, equals, value in pairs
    )
    return f"{scheme}://{head}{mark}{query}{hash_mark}{fragment}"


def _mention(text: str) -> str:
    """Return text that begins with an address, without the credentials of the address."""
    scheme, _, rest = text.partition("://")
    line, newline, more = rest.partition("\n")
    match = None if _is_port(text, line) else _PASSWORD.match(line)
    if match := match or _TOKEN.match(line):
        line = line[match.end() :]
    return f"{scheme}://{line}{newline}{more}"
