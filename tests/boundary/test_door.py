"""Arguments of the public functions are checked by their annotations, postponed ones among them."""

import re
from pathlib import Path

import pytest

import windtunnel
from windtunnel.boundary.door import public
from windtunnel.core.errors import UserError


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: windtunnel.read(5), "read: directory: 5 (int) is no path"),
        (lambda: windtunnel.load_params(3), "load_params: path: 3 (int) is no path"),
        (lambda: windtunnel.subject_of(1, 2), "subject_of: classifier: is a int; a windtunnel Classifier is needed"),
    ],
)
def test_a_public_function_names_an_argument_of_the_wrong_kind(call, line):
    with pytest.raises(UserError, match=re.escape(line)):
        call()


@pytest.mark.parametrize("annotation", [Path, Path | str, "Path", "Path | str"])
def test_a_postponed_annotation_is_checked_as_any_other(annotation):
    def read(place):
        return place

    read.__annotations__["place"] = annotation
    assert public(read)("here") == Path("here")
    with pytest.raises(UserError, match="read: place"):
        public(read)(5)
