"""The HTML in headless Chromium, from file://: silent, offline, sortable, filterable, and nothing of a run is executed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.browser import AVAILABLE, chromium, resize
from tests.reporting.report.conftest import write_run
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not AVAILABLE, reason="Chromium and its driver are not installed"),
]
CHECKS = Path(__file__).with_name("page_checks.js").read_text()
OPEN = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
EVIL = "</script><img src=x onerror=document.title='hacked'><script>document.title='hacked'</script>"
NAMES = [f"{EVIL} {i}" for i in range(3)] + [f"digit {i}" for i in range(3, 130)]
CLASSES = [f"{k} <script>document.title='hacked'</script>" for k in range(10)]


@pytest.fixture(scope="module")
def driver() -> Iterator[object]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def page(driver, digits_subject, tmp_path_factory):
    """The report of 130 digits, some with names that are attacks of their own, opened from disk."""
    from dataclasses import replace

    import torch

    subject = digits_subject.subset(torch.arange(len(NAMES)))
    subject = replace(subject, dataset=replace(subject.dataset, ids=tuple(NAMES), class_names=tuple(CLASSES)))
    folder = write_run(subject, tmp_path_factory.mktemp("evil"))
    render_html(build_report(folder), folder / "report.html")
    driver.get((folder / "report.html").as_uri())
    return driver


def column(page, number):
    script = (
        "return [...document.querySelectorAll('#sample-table tbody tr')].map(r => r.cells[arguments[0]].textContent)"
    )
    return page.execute_script(script, number)


def press(page, selector):
    page.execute_script("document.querySelector(arguments[0]).click()", selector)


def type_into(page, selector, text, event="input"):
    script = "const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event(arguments[2]))"
    page.execute_script(script, selector, text, event)


def test_it_opens_without_a_word_on_the_console_and_without_a_request(page):
    assert page.get_log("browser") == []
    messages = [json.loads(row["message"])["message"] for row in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked)
    assert len([url for url in asked if url.startswith("file:")]) == 1


def test_a_script_in_a_name_stays_text(page):
    assert page.title == "Robustness assessment"
    assert column(page, 1)[0] == NAMES[0]
    assert CLASSES[int(column(page, 2)[0][0])] == column(page, 2)[0]
    assert (
        page.execute_script("return document.querySelectorAll('#sample-table img, #sample-table script').length") == 0
    )


def test_the_table_sorts_by_number_and_by_name(page):
    press(page, "#sample-table th:nth-child(7) button")
    distances = [float(d) for d in column(page, 6) if d]
    assert distances == sorted(distances)
    assert len(set(distances)) > 1
    press(page, "#sample-table th:nth-child(7) button")
    down = [float(d) for d in column(page, 6) if d]
    assert down == sorted(down, reverse=True)
    press(page, "#sample-table th:nth-child(2) button")
    digits = [name for name in column(page, 1) if name.startswith("digit")]
    assert digits == [name for name in NAMES if name.startswith("digit")][: len(digits)]


def test_the_table_filters_by_text_status_and_target_and_says_how_many_are_left(page):
    type_into(page, "#find", "digit 12")
    assert {name.split()[-1][:2] for name in column(page, 1)} == {"12"}
    type_into(page, "#find", "")
    type_into(page, "#status", "broken", "change")
    assert set(column(page, 4)) == {"broken"}
    broken = len(column(page, 4))
    count = page.execute_script("return document.getElementById('count').textContent")
    assert count.startswith(f"{broken} of 130 samples")
    type_into(page, "#target", CLASSES[3], "change")
    assert set(column(page, 2)) <= {CLASSES[3]}
    type_into(page, "#status", "", "change")
    type_into(page, "#target", "", "change")


def test_a_long_table_is_shown_in_pages(page):
    assert len(column(page, 1)) == 100
    press(page, "#more")
    assert len(column(page, 1)) == 130


def test_a_sample_opens_with_all_its_assessments_and_the_arrow_keys_go_on(page):
    from selenium.webdriver.common.keys import Keys

    type_into(page, "#status", "broken", "change")
    button = page.find_element("css selector", "#sample-table tbody button.name")
    page.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    name = page.find_element("id", "detail-name")
    first = name.text
    cells = "return [...document.querySelectorAll('#detail-rows tr')].map(r => [...r.cells].map(c => c.textContent))"
    rows = page.execute_script(cells)
    assert [row[1] for row in rows] == ["clean", "fgsm", "pair"]
    assert "attack succeeded" in {rows[1][3], rows[2][3]}
    assert page.execute_script("return document.querySelectorAll('#detail-rows .thumb').length") == 3
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert name.text != first
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.execute_script("return document.getElementById('detail').open")
    type_into(page, "#status", "", "change")


def test_a_curve_shows_its_values_by_pointer_and_by_key(page):
    from selenium.webdriver.common.keys import Keys

    svg = "[...document.querySelectorAll('svg')].find(s => s.querySelector('circle[data-tip]'))"
    chart = page.execute_script(f"return {svg}")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", chart)
    chart.send_keys(Keys.ARROW_RIGHT)
    tip = page.find_element("id", "tip")
    assert "%" in tip.text
    assert tip.is_displayed()
    chart.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    script = (
        "arguments[0].querySelector('circle[data-tip]').dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))"
    )
    page.execute_script(script, chart)
    assert "%" in tip.text


def test_dark_and_light_are_the_readers_choice(page):
    ground = "return getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(ground)
    press(page, "#theme")
    assert page.execute_script(ground) != before
    press(page, "#theme")
    assert page.execute_script(ground) == before


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_no_screen_scrolls_sideways(page, width):
    resize(page, width, 900)
    try:
        page.execute_script("document.querySelectorAll('details.detail').forEach((d) => { d.open = true; })")
        wide = (
            "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.outerHTML.slice(0, 90))"
        )
        assert page.execute_script("return document.documentElement.scrollWidth") <= width, page.execute_script(wide)
    finally:
        page.execute_script("document.querySelectorAll('details.detail').forEach((d) => { d.open = false; })")
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_first_pictures_need_no_scrolling_on_a_phone(page):
    resize(page, 390, 844)
    try:
        script = "const box = document.querySelector('.small .scroll'); return [box.scrollWidth - box.clientWidth, "
        script += (
            "[...box.querySelectorAll('th, td')].filter(e => e.offsetWidth).map(e => e.innerText.split('\\n')[0])]"
        )
        too_wide, texts = page.execute_script(script)
        assert too_wide <= 0
        assert texts[:3] == ["clean", "random", "nearest"]
        assert len(texts) == 3 + 9
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_words_of_a_chart_lie_on_others(page):
    page.execute_script(OPEN)
    assert page.execute_script(CHECKS, "overlaps") == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_can_be_read(page, theme):
    """WCAG AA: 4.5, and 3 for large text; in charts against the mark below the words."""
    page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    page.execute_script(OPEN)
    try:
        assert page.execute_script(CHECKS, "unreadable") == []
    finally:
        page.execute_script("delete document.documentElement.dataset.theme")


def test_it_prints_every_row_and_ends_as_silent_as_it_began(page):
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert len(column(page, 1)) == 130
    assert page.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.get_log("browser") == []
