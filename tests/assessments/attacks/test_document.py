"""docs/algorithms.md says what the registry says."""

from pathlib import Path

from tools.algorithms_page import PAGE, page


def test_page_is_the_registry() -> None:
    written = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")
    assert written == page(), "run python -m tools.algorithms_page"
