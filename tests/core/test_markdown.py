"""Names of a run are text in a comment, whatever their characters."""

import pytest

from windtunnel.core.markdown import escape, with_code
from windtunnel.evaluation.gate.table import markdown
from windtunnel.records.gate import Decision, GateResult


@pytest.mark.parametrize(("text", "shown"), [
    ("worst_case/accuracy [0.330, 0.470]", "worst_case/accuracy [0.330, 0.470]"),
    ("<img src=x>", "\\<img src=x\\>"),
    ("[here](https://evil.example)", "[here\\](https://evil.example)"),
    ("![x](y)", "\\![x\\](y)"),
    ("a | b\n# c", "a \\| b # c"),
    ("@team **now** `x` &lt;", "&#64;team \\*\\*now\\*\\* \\`x\\` &amp;lt;"),
    ("_all_", "\\_all\\_"),
])  # fmt: skip
def test_markup_becomes_text(text, shown):
    assert escape(text) == shown


def test_a_hard_failure_with_markup_in_a_name_is_text_in_the_comment():
    line = "sample x</details><a href=//evil>[y](z) @team\n# big is broken"
    text = markdown(GateResult(Decision.UNSOUND, (), (line,)))
    assert "</details>" not in text
    assert "](z)" not in text.replace("\\](z)", "")
    assert "@team" not in text
    assert not any(row.startswith("# ") for row in text.splitlines())


def test_code_is_split_from_text_and_single_backticks_stay():
    assert with_code("each batch is seeded from `seed`: another") == [
        ("each batch is seeded from ", False),
        ("seed", True),
        (": another", False),
    ]
    assert with_code("a ` alone") == [("a ` alone", False)]
