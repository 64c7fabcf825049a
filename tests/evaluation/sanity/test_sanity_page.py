from pathlib import Path

from tools.sanity_page import PAGE, page


def test_page_is_what_the_registry_says() -> None:
    assert (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8") == page()
