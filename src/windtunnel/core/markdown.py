"""Text of a run as Markdown that cannot become markup, a link or a mention."""

import re

# Underscores inside a word and brackets without a link behind them are text already, and stay legible.
_MARKUP = re.compile(r"[\\`*<>|~]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|!(?=\[)")

_CODE = re.compile(r"`([^`\n]+)`")


def with_code(text: str) -> list[tuple[str, bool]]:
    """Split text at its `code`: (part, True if it stands between backticks), without the backticks."""
    return [(part, i % 2 == 1) for i, part in enumerate(_CODE.split(text)) if part]


def escape(text: str) -> str:
    """Return `text` on one line, with everything escaped that Markdown, HTML or a mention (`@name`) begins with."""
    escaped = _MARKUP.sub(lambda match: f"\\{match[0]}", text.replace("&", "&amp;"))
    return " ".join(escaped.replace("@", "&#64;").split())
