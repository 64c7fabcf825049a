"""The sample browser in headless Chromium, from disk: quick, silent, by keyboard, and nothing of a run is executed."""

import itertools
import re
from pathlib import Path

import pytest

from benchmarks.browser import AVAILABLE, chromium, resize
from benchmarks.view import write_page, write_run

CHECKS = (Path(__file__).parents[1] / "report" / "page_checks.js").read_text()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not AVAILABLE, reason="Chromium and its driver are not installed"),
]


def test_of_many_samples_only_those_near_the_screen_are_in_the_page(tmp_path):
    """The time does not grow with the samples then; benchmarks/view.py measures 100,000, where 1 s and 200 ms are wanted."""
    from selenium.webdriver.support.ui import WebDriverWait

    page = write_page(write_run(tmp_path / "run", 20_000, 2), tmp_path / "page")
    with chromium(1280, 900) as driver:
        driver.get(page.as_uri())
        wait = WebDriverWait(driver, 30)
        wait.until(lambda d: "20,000 of 20,000" in d.find_element("id", "count").text)
        drawn = "return document.querySelectorAll('.cell').length"
        assert 200 <= driver.execute_script(drawn) < 2000
        driver.find_element("tag name", "body").send_keys("/")
        driver.switch_to.active_element.send_keys("sample-0001")
        wait.until(lambda d: "of 20,000" in d.find_element("id", "count").text.replace("20,000 of 20,000", ""))
        assert 0 < driver.execute_script(drawn) < 2000


def test_it_filters_opens_and_steps_by_keyboard_without_a_word_on_the_console(tmp_path):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    page = write_page(write_run(tmp_path / "run", 300, 2), tmp_path / "page")
    with chromium(1280, 900) as driver:
        driver.get(page.as_uri())
        wait = WebDriverWait(driver, 10)
        assert "300 of 300" in driver.find_element("id", "count").text
        visible = "return [...document.querySelectorAll('.cell')].filter((e) => e.getBoundingClientRect().bottom <= innerHeight).length"
        assert driver.execute_script(visible) >= 200
        assert driver.find_element("css selector", "#runs p").text == "run 300 samples"
        body = driver.find_element("tag name", "body")
        body.send_keys("j", Keys.ARROW_DOWN)
        marked = driver.find_element("css selector", "[aria-selected=true]").get_attribute("aria-posinset")
        assert int(marked) == 1 + driver.execute_script("return across()")
        driver.find_element("css selector", ".cell").click()
        wait.until(lambda d: len(d.find_elements("css selector", "#detail-rows tr")) >= 2)
        fits = "return [...document.querySelectorAll('html, #detail, #detail .scroll')].every((e) => e.scrollWidth <= e.clientWidth)"
        assert driver.execute_script(fits), "the detail of a sample is wider than its place"
        assert re.search(r"\bconfidence [\d.]+\s%", driver.find_element("id", "detail-rows").text)
        first = driver.find_element("id", "detail-name").text
        driver.find_element("tag name", "body").send_keys("j")
        wait.until(lambda d: d.find_element("id", "detail-name").text != first)
        driver.find_element("tag name", "body").send_keys(Keys.ESCAPE)
        assert not driver.find_element("id", "detail").is_displayed()
        driver.find_element("tag name", "body").send_keys("/")
        driver.switch_to.active_element.send_keys("sample-00001")
        wait.until(lambda d: "10 of 300" in d.find_element("id", "count").text)
        logs = [
            row for row in driver.get_log("browser") if "sheets/" not in row["message"]
        ]  # only the first sheet is written
        assert logs == []
        asked = driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
        assert all(url.startswith("file:") for url in asked)


def test_without_pictures_the_samples_are_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.reporting.view.site.picture_mode", lambda: "none")
    page = write_page(write_run(tmp_path / "run", 30, 1), tmp_path / "page")
    with chromium(1280, 900) as driver:
        driver.get(page.as_uri())
        driver.find_element("tag name", "body").send_keys("t")
        assert driver.find_element("id", "heads").text.split()[:2] == ["sample", "class"]
        assert len(driver.find_elements("css selector", "#show option")) == 1
        assert driver.get_log("browser") == []


def test_the_served_page_keeps_its_selection_in_the_fragment_and_the_token_out_of_the_address(tmp_path):
    import threading

    from selenium.webdriver.support.ui import WebDriverWait

    from windtunnel.reporting.compare.runs import run_in
    from windtunnel.reporting.view.serve import ViewServer
    from windtunnel.reporting.view.site import site

    httpd = ViewServer(site([run_in(write_run(tmp_path / "run", 300, 2), "run")], served=True), "127.0.0.1", 0)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        with chromium(1280, 900) as driver:
            wait = WebDriverWait(driver, 10)
            driver.get(httpd.address)
            wait.until(lambda d: "300 of 300" in d.find_element("id", "count").text)
            driver.find_element("id", "find").send_keys("sample-00001")
            wait.until(lambda d: "10 of 300" in d.find_element("id", "count").text)
            link = driver.current_url
            assert link == f"http://127.0.0.1:{httpd.server_port}/#find=sample-00001"
            driver.get("about:blank")
            driver.get(link)
            wait.until(lambda d: "10 of 300" in d.find_element("id", "count").text)
            driver.find_element("css selector", ".cell").click()
            wait.until(lambda d: d.find_element("id", "detail-name").text == "sample-000010")
            opened = driver.current_url
            assert opened == f"{link}&sample=sample-000010"
            driver.back()
            wait.until(lambda d: not d.find_element("id", "detail").is_displayed())
            driver.get("about:blank")
            driver.get(opened)
            wait.until(lambda d: d.find_element("id", "detail-name").text == "sample-000010")
            assert [row for row in driver.get_log("browser") if "sheets/" not in row["message"]] == []
    finally:
        httpd.shutdown()
        httpd.server_close()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """A page of two runs of 300 samples, of which the second has fewer broken ones."""
    from windtunnel.records.artifacts import load_tensors, save_tensors
    from windtunnel.reporting.compare.runs import run_in
    from windtunnel.reporting.view.site import write_site

    folder = tmp_path_factory.mktemp("two")
    for name in ("before", "after"):
        write_run(folder / name, 300, 2)
    for path in (folder / "after").glob("*/*/robustness_data.pt"):
        data = load_tensors(path)
        data["verdicts"][:100] = 2
        save_tensors(data, path)
    list(write_site([run_in(folder / name, name) for name in ("before", "after")], folder / "page"))
    return folder / "page" / "index.html"


def test_a_sample_is_shown_in_two_runs_beside_each_other(two_runs):
    from selenium.webdriver.support.ui import WebDriverWait

    with chromium(1280, 900) as driver:
        wait = WebDriverWait(driver, 10)
        driver.get(f"{two_runs.as_uri()}#source=attack_0&flip=gained&show=table&verdict-attack_1.1=2")
        wait.until(lambda d: d.find_elements("css selector", ".row[data-place]"))
        count = int(driver.find_element("id", "count").text.split()[0])
        assert 0 < count < 40
        heads = [head.text for head in driver.find_elements("css selector", "#heads > *")]
        assert heads[4:] == ["before: status", "after: status", "before: attack_0", "after: attack_0"]
        driver.find_elements("css selector", "#heads button")[0].click()
        driver.find_elements("css selector", "#heads button")[0].click()
        names = [row.text.split()[0] for row in driver.find_elements("css selector", ".row[data-place]")]
        assert names == sorted(names, reverse=True)
        assert driver.find_elements("css selector", "#heads button")[0].text == "sample ↓"
        driver.find_element("css selector", ".row[data-place]").click()
        wait.until(lambda d: d.find_elements("css selector", "#figures figure"))
        texts = [row.text for row in driver.find_elements("css selector", "#detail-heads th[scope=colgroup]")]
        assert texts == ["before", "after"]
        row = next(r for r in driver.find_elements("css selector", "#detail-rows tr") if r.text.startswith("attack_0"))
        assert row.text.index("attack succeeded") < row.text.index("attack failed")


def test_text_is_legible_and_nothing_is_wider_than_the_screen(two_runs):
    from selenium.webdriver.support.ui import WebDriverWait

    pages = ("", "show=table&source=attack_0", "show=large&picture=difference", "sample=sample-000003")
    with chromium(1280, 900) as driver:
        for size, theme, fragment in itertools.product(((1280, 900), (390, 844)), ("light", "dark"), pages):
            resize(driver, *size)
            features = [{"name": "prefers-color-scheme", "value": theme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.get("about:blank")
            driver.get(f"{two_runs.as_uri()}#{fragment}")
            shown = "#figures figure" if fragment.startswith("sample") else "[data-place]"
            WebDriverWait(driver, 10).until(lambda d, shown=shown: d.find_elements("css selector", shown))
            driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert driver.execute_script(CHECKS, "unreadable") == []
            page = "document.documentElement"
            assert driver.execute_script(f"return {page}.scrollWidth <= {page}.clientWidth"), (size, fragment)
        assert driver.get_log("browser") == []
