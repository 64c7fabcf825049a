"""The sample browser in headless Chromium, from disk: quick, silent, by keyboard, and nothing of a run is executed."""

import pytest

from benchmarks.browser import AVAILABLE, chromium
from benchmarks.view import measure, write_page, write_run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not AVAILABLE, reason="Chromium and its driver are not installed"),
]


def test_the_first_view_and_the_filters_are_quick(tmp_path):
    """20,000 samples here; benchmarks/view.py measures 100,000, where 1 s and 200 ms are wanted."""
    page = write_page(write_run(tmp_path / "run", 20_000, 2), tmp_path / "page")
    found = measure(page)
    assert found.pop("first view") < 2000  # a loaded machine; 0.3 s on an idle one
    assert max(found.values()) < 500


def test_it_filters_opens_and_steps_by_keyboard_without_a_word_on_the_console(tmp_path):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    page = write_page(write_run(tmp_path / "run", 300, 2), tmp_path / "page")
    with chromium(1280, 900) as driver:
        driver.get(page.as_uri())
        wait = WebDriverWait(driver, 10)
        assert "300 of 300" in driver.find_element("id", "count").text
        driver.find_element("css selector", ".row").click()
        wait.until(lambda d: len(d.find_elements("css selector", "#detail-rows tr")) == 3)
        fits = "return [...document.querySelectorAll('html, #detail, #detail .scroll')].every((e) => e.scrollWidth <= e.clientWidth)"
        assert driver.execute_script(fits), "the detail of a sample is wider than its place"
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
            driver.find_element("css selector", ".row").click()
            wait.until(lambda d: len(d.find_elements("css selector", "#detail-rows tr")) == 3)
            assert [row for row in driver.get_log("browser") if "sheets/" not in row["message"]] == []
    finally:
        httpd.shutdown()
        httpd.server_close()
