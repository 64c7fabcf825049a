"""Texts from outside have limits on size, depth, aliases and digits; DVC's YAML is ours."""

import sys
import time

import pytest

from windtunnel.boundary.text import parse_json, parse_yaml
from windtunnel.core.errors import UserError
from windtunnel.params.entry import parse_number

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 20))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "aliases (*) expand"),
        (MERGES, "aliases (*) expand"),
        ("&a [*a]", "holds itself"),
        ("&a {k: *a}", "holds itself"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ("{a: " * 5000 + "}" * 5000, "nested too deeply"),
        ("- " * 20_000 + "a", "nested too deeply"),
        ("a: " + "9" * 100_000, "100000 digits"),
        ("a: 0." + "9" * 100_000, "digits"),
        ("a: 0x" + "f" * 100_000, "digits"),
        ("a: 2020-99-99", "not YAML"),
        ("a: [", "not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        ("a: *nobody", "not YAML"),
        ("{[a]: 1, {b: 1}: 2}", "not YAML"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("%YAML 9.9\n---\na: 1", "not YAML"),
        ("<<: 3", "not YAML"),
    ],
    ids=lambda value: value[:24],
)
def test_a_hostile_yaml_is_one_line_at_once(text, words):
    started = time.monotonic()
    with pytest.raises(UserError) as error:
        parse_yaml(text, "params.yaml")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    assert time.monotonic() - started < 10


def test_yaml_is_read_as_dvc_reads_it():
    text = "a: 1e-3\nb: &b {x: [1, yes, null, 0o17]}\nc: {<<: *b, y: 2020-01-01}\nd: 8/255\n"
    content = parse_yaml(text, "here")
    assert content["a"] == 1e-3
    assert content["b"] == {"x": [1, "yes", None, 15]}
    assert content["c"]["x"] is content["b"]["x"]
    assert content["d"] == "8/255"
    assert parse_yaml("", "here") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "digits"),
        ("{", "not JSON"),
        (b"\xff", "not JSON"),
        ("1" * 2**21, "at most"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_hostile_json_is_one_line(text, words):
    with pytest.raises(UserError, match=words):
        parse_json(text, "config.json")


@pytest.mark.parametrize(
    "value",
    [
        "1/1e999999999",
        "1e999999999",
        "1e-999999999",
        "1e9_99_999_999",
        "1" * 100_000,
        10**5000,
        "1e-401",
        "1/0",
        True,
        "1//2",
        [1],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_hostile_number_is_refused_at_once(value):
    started = time.monotonic()
    with pytest.raises(ValueError, match="is not a number") as error:
        parse_number(value)
    assert len(str(error.value)) < 250
    assert time.monotonic() - started < 10


def test_numbers_that_people_write_are_read():
    assert parse_number("8/255") == 8 / 255
    assert parse_number("1e-3") == 1e-3
    assert parse_number("0.03137254901960784313725490196078431372549") == 8 / 255


@pytest.mark.parametrize("text", ["[" * 300_000, "- " * 30_000 + "a", "-\t" * 30_000 + "a", "a: " + "{" * 2000])
def test_deep_nesting_is_not_left_to_libyaml(text):
    with pytest.raises(UserError, match=r"nested too deeply|not YAML"):
        parse_yaml(text, "dvc.lock", fast=True)


@pytest.mark.parametrize("fast", [True, False])
def test_deep_nesting_takes_no_time_where_a_library_raised_the_recursion_limit(fast):
    limit, started = sys.getrecursionlimit(), time.process_time()
    sys.setrecursionlimit(50_000)
    try:
        with pytest.raises(UserError, match="nested too deeply"):
            parse_yaml("[{" * 150_000, "dvc.lock", fast=fast)
    finally:
        sys.setrecursionlimit(limit)
    assert time.process_time() - started < 10  # minutes before


def test_the_fast_parser_reads_what_dvc_writes():
    text = "schema: '2.0'\nstages:\n  resolve:\n    cmd: python\n    deps:\n    - path: a\n      size: 3\n"
    assert parse_yaml(text, "dvc.lock", fast=True) == parse_yaml(text, "dvc.lock")
