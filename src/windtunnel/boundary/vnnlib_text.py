"""Reading and writing VNN-LIB: a box of inputs, and the outputs that none of its points may have.

The parser is `vnnlib` (PyPI), which reads version 2; the files of the competitions up to 2025 are of version 1, whose
variables X_0, X_1, ... are elements of one tensor, and are rewritten before. Source: www.vnnlib.org.
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.boundary.files import path_text, read_text
from windtunnel.core.errors import UserError, shown

_MOST_TERMS = 1000
_COMMENT = re.compile(r";[^\n]*")
_OPENED = re.compile(r"\(\s+")  # vnnlib 1.0.2 takes no blank after a parenthesis
_FUNCTION = re.compile(r"\(\s*declare-fun\s+(\w+)\s*\(\s*\)")
_WITHOUT_EFFECT = re.compile(r'\(\s*(?:set-(?:logic|option|info)|check-sat|get-model|exit)\b(?:"[^"]*"|[^()"])*\)')
_UNREAD = re.compile(r"\(\s*(/|not|=>|xor|ite|let|forall|exists|distinct|define-fun|push|pop)(?=[\s()])")
_DECLARED = re.compile(r"\(\s*declare-const\s+([XY])_(\d+)\s+\w+\s*\)")
_VARIABLE = re.compile(r"\b([XY])_(\d+)\b")
_INDEX = re.compile(r"\b(?:[XY]_0*|\w+\[0*)(\d+)\b")  # of version 1, or the first of version 2
_SIDE = r"(?:[^\s()]+|\((?:[^()]|\([^()]*\))*\))"  # a name, a number, or a sum of products
_COMPARED = re.compile(rf"\(\s*(==?|[<>]=?(?=(?:\s+{_SIDE}){{3}}))((?:\s+{_SIDE}){{2,}})\s*\)")
_OTHER_NAME = re.compile(r"\(\s*declare-const\s+(?![XY]_\d+\s)(\S+)")
_OTHER_EQUAL = re.compile(r"\(\s*(?:==|!=)")
_STRICT = re.compile(r"\(\s*[<>]\s")
_PARENTHESIS = re.compile(r"[()]")
_ASSERTION, _CONJUNCTION = (re.compile(rf"\s*\(\s*{word}\b(.*)\)", re.DOTALL) for word in ("assert", "and"))
_CHOICE = re.compile(r"\s*\(\s*or\b")
_COMPOUND = re.compile(r"\(\s*assert\s*\(\s*(?:and|or)\b")
_SHAPE = re.compile(r"declare-(?:input|output|hidden)\s+\w+\s+\w+\s+\[([^\]]*)\]")
_DIGITS = re.compile(r"(\d+\.?\d*|\.\d+)(?:[eE][-+]?0*(\d+))?")
_NUMBER = re.compile(r"(?<![\w.\[,<])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.\],>])")


MAX_BYTES = 2**28  # of text, unpacked; the largest of the competitions have some 10 MB
MAX_VARIABLES, MAX_DIGITS, MAX_EXPONENT = 1_000_000, 300, 300


@dataclass(frozen=True, slots=True)
class Specification:
    """Ask for an x with low <= x <= high and, for some term t, rows[r] @ y <= limits[r] for all rows r of t.

    low, high: float64 (d,). rows: float64 (m, K). limits: float64 (m,). terms: int64 (m,), the term of each row, 0, 0, 1 ...; such an
    x is a counterexample, `sat`. is_strict: the file has < or >, so that <= is not enough.
    """

    low: Tensor
    high: Tensor
    rows: Tensor
    limits: Tensor
    terms: Tensor
    is_strict: bool = False

    def holds_at(self, logits: Tensor) -> bool:
        """Return whether the outputs (K,) are among those asked for."""
        distances = self.limits - self.rows @ logits.double()
        holds = distances > 0 if self.is_strict else distances >= 0
        return any(bool(holds[self.terms == term].all()) for term in self.terms.unique())


def read_specifications(path: Path) -> list[Specification]:
    """Return the boxes of a file, each with its outputs: the file is `sat` where one of them is.

    Raises UserError, in one line, for a file that is no VNN-LIB, asks for more than boxes of inputs and linear
    inequalities of outputs, or has more than 1,000 terms as a disjunction of conjunctions.
    """
    import vnnlib
    import vnnlib.compat

    text = _COMMENT.sub("", read_text(path, max_bytes=MAX_BYTES, gunzip=True))
    text = _OPENED.sub("(", _FUNCTION.sub(r"(declare-const \1", _WITHOUT_EFFECT.sub("", text)))
    if unread := _UNREAD.search(text):
        raise UserError(
            f"{path_text(path)}: uses {unread[1]}; boxes and linear outputs are written with and, or, <=, >=, =, +, - and * alone"
        )
    if _count_terms(text) > _MOST_TERMS:
        raise UserError(
            f"{path}: has more than {_MOST_TERMS} terms as a disjunction of conjunctions; split it into several files"
        )
    try:
        query = vnnlib.parse_query_string(_as_version_2(path, text))
        cases = vnnlib.compat.transform(query)
    except UserError:
        raise
    except Exception as error:  # vnnlib's C++ code raises IndexError and more beside its own
        raise UserError(f"{path}: not VNN-LIB of boxes and linear outputs ({_mistake(str(error))})") from error
    if not cases:
        raise UserError(f"{path}: has an empty input region: no input satisfies its bounds")
    is_strict = _STRICT.search(text) is not None
    return [_specification(path, case, is_strict) for case in cases]


def _specification(path: Path, case: Any, is_strict: bool) -> Specification:  # vnnlib's own type
    low, high = torch.tensor(case.input_box, dtype=torch.float64).unbind(1)
    if not bool((low.isfinite() & high.isfinite()).all()):
        variable = int((~(low.isfinite() & high.isfinite())).nonzero()[0])
        raise UserError(f"{path}: input {variable} has no bound below or above; every input needs both")
    if bool((torch.maximum(low.abs(), high.abs()) > torch.finfo(torch.float32).max).any()):
        raise UserError(
            f"{path}: an input has a bound beyond 3.4e38, the range of float32, in which the graph computes"
        )
    if bool((low > high).any()):
        raise UserError(f"{path}: the lower bound of input {int((low > high).nonzero()[0])} exceeds the upper one")
    polytopes = case.output_constraints
    if not polytopes or not all(len(polytope.rhs) for polytope in polytopes):
        raise UserError(f"{path}: constrains no output; one such as (>= Y_1 Y_0) is needed")
    rows = torch.tensor([row for polytope in polytopes for row in polytope.coeff_matrix], dtype=torch.float64)
    limits = torch.tensor([limit for polytope in polytopes for limit in polytope.rhs], dtype=torch.float64)
    terms = torch.tensor([i for i, polytope in enumerate(polytopes) for _ in polytope.rhs])
    return Specification(low, high, rows, limits, terms, is_strict)


def _mistake(text: str) -> str:
    """Return the first mistake of vnnlib's message, which is a JSON object or a sentence, on one line."""
    parts = dict(re.findall(r'"(hint|line|message)": "?([^"\n]*[^",\s])', text[:2000])[:3])
    reason = f"line {parts.get('line')}: {parts['message']}: {parts.get('hint', '')}" if "message" in parts else text
    return " ".join(reason.split())[:200]


def _count_terms(text: str) -> int:
    """Return how many terms the assertions of a file have together as a disjunction of conjunctions."""
    counts: list[list[int]] = [[]]
    operators: list[str] = [""]
    first = _CHOICE.search(text)  # assertions before it are one term
    start = text.rfind("assert", 0, first.start()) - 1 if first else len(text)
    for token in re.findall(r"[()]|[^()\s]+", text[max(0, start) :]):
        if token == "(":
            counts.append([])
            operators.append("")
        elif token == ")" and len(counts) > 1:
            inner, operator = counts.pop(), operators.pop()
            counts[-1].append(sum(inner) if operator == "or" and inner else min(math.prod(inner), _MOST_TERMS + 1))
        elif not operators[-1]:
            operators[-1] = token
    return math.prod(counts[0])


def _as_version_2(path: Path, text: str) -> str:
    """Return version 1 as version 2, and every number with a point and without an exponent, as vnnlib 1.0.2 reads them.

    Raises UserError for an index or a number beyond all limits: a few bytes of text would need gigabytes.
    """
    text = _join_choices(_COMPARED.sub(_in_pairs, text))
    if other := _OTHER_NAME.search(text):
        raise UserError(f"{path_text(path)}: declares {shown(other[1])}; version 1 has X_0, X_1, ... and Y_0, Y_1, ...")
    if _OTHER_EQUAL.search(text):  # vnnlib 1.0.2 takes both for an inequality
        raise UserError(
            f"{path_text(path)}: asks for == of deeper sums or for !=; write each as inequalities, <= and >="
        )
    for digits in _INDEX.findall(text):
        if len(digits) > 12 or int(digits) >= MAX_VARIABLES:
            raise UserError(f"{path_text(path)}: a variable has the index {shown(digits)}; {MAX_VARIABLES - 1} at most")
    for sides in _SHAPE.findall(text):
        if math.prod(int(side[:20]) for side in sides.split(",") if side.strip().isdecimal()) > MAX_VARIABLES:
            raise UserError(f"{path_text(path)}: declares {shown(sides)} values; {MAX_VARIABLES} at most")
    for match in _DIGITS.finditer(text):
        number, exponent = match[1], match[2] or "0"
        if len(number) > MAX_DIGITS or len(exponent) > 3 or int(exponent) > MAX_EXPONENT:
            raise UserError(
                f"{path_text(path)}: {shown(match[0])} has more than {MAX_DIGITS} digits or an exponent beyond {MAX_EXPONENT}"
            )
    declarations = _DECLARED.findall(text)
    if declarations:
        sizes = {
            letter: 1 + max(int(i) for name, i in declarations if name == letter)
            for letter in {name for name, _ in declarations}
        }
        declared = (
            f"(vnnlib-version <2.0>)\n(declare-network N\n(declare-input X float32 [{sizes.get('X', 0)}])\n"
            f"(declare-output Y float32 [{sizes.get('Y', 0)}]))\n"
        )
        body = _NUMBER.sub(_plain, _DECLARED.sub("", text))
        return declared + _VARIABLE.sub(r"\1[\2]", body)
    return _NUMBER.sub(_plain, text)


def _in_pairs(match: re.Match[str]) -> str:
    """Return an equality or a chain of comparisons as inequalities of two sides."""
    sides, operators = re.findall(_SIDE, match[2]), ["<=", ">="] if match[1] in {"=", "=="} else [match[1]]
    pairs = [f"({word} {side} {other})" for side, other in itertools.pairwise(sides) for word in operators]
    return f"(and {' '.join(pairs)})"


def _join_choices(text: str) -> str:
    """Return a text without conjunctions around assertions and with one disjunction: vnnlib 1.0.2 takes several for alternatives."""
    if len(_COMPOUND.findall(text)) < 2:
        return text
    others, choices, conjunctions = list[str](), list[str](), 0
    stack = [(item, False) for item in reversed(_items(text))]
    while stack:
        item, is_body = stack.pop()
        if not is_body and (match := _ASSERTION.match(item)):
            stack.append((match[1], True))
        elif is_body and (match := _CONJUNCTION.match(item)):
            conjunctions += 1
            stack += [(inner, True) for inner in reversed(_items(match[1]))]
        elif is_body and _CHOICE.match(item):
            choices.append(item)
        else:
            others.append(f"(assert {item})" if is_body else item)
    if len(choices) + conjunctions <= 1:
        return text
    joined = choices[:1] if len(choices) < 2 else [f"(and {' '.join(choices)})"]
    return "\n".join([*others, *(f"(assert {choice})" for choice in joined)])


def _items(text: str) -> list[str]:
    """Return the expressions side by side in a text; what is no expression stays with the one after it, or is the last."""
    items, depth, end = list[str](), 0, 0
    for match in _PARENTHESIS.finditer(text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            items.append(text[end : match.end()])
            end = match.end()
    return [*items, text[end:]] if text[end:].strip() else items


def _plain(number: re.Match[str]) -> str:
    text = format(Decimal(number[0]), "f")
    return text if "." in text else f"{text}.0"


def robustness(low: Tensor, high: Tensor, target: int, num_classes: int, title: str) -> Iterator[str]:
    """Yield the lines of a version 1 file: does some other class reach the target anywhere in the box? low, high: (d,)."""
    yield f"; {title}"
    for letter, count in (("X", len(low)), ("Y", num_classes)):
        yield from (f"(declare-const {letter}_{i} Real)" for i in range(count))
    for i, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        yield f"(assert (>= X_{i} {_written(least)}))"
        yield f"(assert (<= X_{i} {_written(most)}))"
    yield "(assert (or"
    yield from (f"    (and (>= Y_{other} Y_{target}))" for other in range(num_classes) if other != target)
    yield "))"


def _written(value: float) -> str:
    """All digits of a float64, without an exponent."""
    return format(Decimal(repr(value)), "f")


def counter_example(inputs: Tensor, outputs: Tensor) -> str:
    """Return the competition's form: `((X_0 0.1) ... (Y_0 2.3) ...)`, a pair a line; inputs (d,), outputs (K,)."""
    pairs = [
        f"({letter}_{i} {value!r})"
        for letter, values in (("X", inputs), ("Y", outputs))
        for i, value in enumerate(values.double().tolist())
    ]
    return "(" + "\n".join(pairs) + ")"
