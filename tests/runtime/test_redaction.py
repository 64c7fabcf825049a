"""No character of a password survives in an address that is shown."""

import string
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windtunnel.runtime.credentials import secrets_in, without_credentials, without_secrets

PASSWORDS = st.text(string.printable, min_size=6, max_size=30).map(lambda text: f"Qz{text}zQ")
ADDRESSES = st.sampled_from(
    [
        "postgresql://alice:{}@host/db",
        "mysql+pymysql://alice:{}@host:3306/db?charset=utf8",
        "https://alice:{}@host/path",
        "mssql+pyodbc://alice:{}@host/db?driver=ODBC+Driver",
    ]
)
QUERIES = st.sampled_from(
    [
        "https://host/p?token={}",
        "postgresql://host:5432/db?password={}",
        "https://h/p?api_key={}&a=b",
        "s3://b/k?key={}",
    ]
)


@given(ADDRESSES, PASSWORDS)
@example("postgresql://alice:{}@host/db", "Qz/ ' \" < > x://@zQ")
@example("postgresql://alice:{}@host/db", string.printable)
def test_a_password_of_any_printable_character_is_removed(address, password):
    shown = without_credentials(address.format(password))
    assert "Qz" not in shown
    assert "zQ" not in shown
    assert "alice" not in shown
    assert "host" in shown
    assert password in secrets_in(address.format(password))


@given(QUERIES, PASSWORDS)
def test_a_secret_in_the_query_is_removed_and_its_key_stays(address, password):
    shown = without_credentials(address.format(quote(password, safe="")))
    assert "Qz" not in shown
    assert "=***" in shown
    assert password in secrets_in(address.format(quote(password, safe="")))


@given(ADDRESSES, PASSWORDS.filter(lambda text: len(text.splitlines()) == 1))
def test_an_address_in_a_sentence_loses_its_password(address, password):
    shown = without_credentials(f"OperationalError: {address.format(password)} gives no answer")
    assert password not in shown
    assert shown.startswith("OperationalError: ")


@given(PASSWORDS)
def test_a_known_secret_is_replaced_however_it_is_encoded(password):
    text = f"<p>{password}</p> {quote(password, safe='')}"
    assert password not in without_secrets(text, {password})
    assert quote(password, safe="") not in without_secrets(text, {password})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3Dhunter2", "mssql+pyodbc:///?odbc_connect=***"),
        ("mssql+pyodbc:///?odbc_connect={DRIVER=X;PWD=a b&c}", "mssql+pyodbc:///?odbc_connect=***"),
        (
            "http://localhost:5000/#/experiments/1 by bob@example.org",
            "http://localhost:5000/#/experiments/1 by bob@example.org",
        ),
        ("postgresql://host:5432/db?password=p@ss", "postgresql://***"),
        ("see https://github.com/owner/name/tree/v1@2", "see https://github.com/owner/name/tree/v1@2"),
        ("https://host/p?%74oken=hunter2", "https://host/p?%74oken=***"),
    ],
)
def test_addresses_are_shown_like_this(text, shown):
    assert without_credentials(text) == shown
