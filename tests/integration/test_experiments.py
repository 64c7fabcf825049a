"""Two budgets as DVC experiments: swept, compared, shared through a remote, and seen in MLflow's UI by a real browser."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.integration.clone import Clone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PARAMS = """
seed: 0
device: cpu
data: {source: digits, samples: {n: 30, selection: stratified}}
model: {source: train, train: {architecture: mlp, epochs: 10}}
budget: {norm: Linf, epsilon: 0.05}
attacks:
  fgsm: {library: torchattacks, algorithm: FGSM}
tracking: {experiment: test}
gate: {minimum: {clean/accuracy: 0.5}}
"""

BASES = "Linf 0.05, n 30 / Linf 0.2, n 30"  # what the numbers of both runs are of


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A clone whose HEAD holds the results at epsilon 0.05, and after the sweep an experiment at 0.2."""
    made = Clone(tmp_path_factory.mktemp("project"))
    made.write_params(PARAMS)
    made.run("dvc", "repro")
    made.commit("results")
    made.swept = made.run("windtunnel", "sweep", "--budget", "epsilon=0.05,0.2", "--jobs", "2", "--markdown")
    return made


def test_a_sweep_runs_what_its_budgets_change_and_prints_the_comparison(project):
    assert "| budget.epsilon | 0.05 | 0.2 |" in project.swept
    rate = r"[\d.]+% \\\[[\d.]+%, [\d.]+%\\\]"
    assert re.search(rf"\| worst case \| {BASES} \| {rate} \| {rate} \| -", project.swept)
    assert "Running stage 'attack@fgsm'" in project.swept
    assert not re.search("Running stage '(prepare|train|clean)'", project.swept)
    assert project.run("dvc", "exp", "list", "--name-only").split() == ["sweep-epsilon-0.05", "sweep-epsilon-0.2"]


def test_the_store_survives_the_folder_that_the_experiments_ran_in(project):
    _, parents, _ = project.parents()
    assert {p.data.params["budget.epsilon"] for p in parents} == {"0.05", "0.2"}
    assert len(parents) == 2  # the sweep's 0.05 is the state that was logged before it
    assert all(p.data.tags["windtunnel.complete"] == "true" and p.info.status == "FINISHED" for p in parents)
    (swept,) = (p for p in parents if p.data.params["budget.epsilon"] == "0.2")
    assert swept.data.tags["dvc.exp.name"] == "sweep-epsilon-0.2"
    assert "attack@fgsm=" in swept.data.tags["dvc.stage_hashes"]
    assert not any((project.folder / ".dvc" / "tmp" / "exps").glob("tmp*/mlflow.db"))


def test_revisions_experiments_runs_and_directories_are_one_to_compare(project):
    _, parents, _ = project.parents()
    run = next(p for p in parents if p.data.params["budget.epsilon"] == "0.2").info
    # One experiment by three names, so each of the three against HEAD gives the same row.
    names = ["HEAD", "sweep-epsilon-0.2", run.run_id, run.run_name]
    shown = project.run("windtunnel", "compare", *names, "--markdown")
    rows = [line for line in shown.splitlines() if line.startswith(f"| fgsm | {BASES} |")]
    assert len(rows) == 3
    assert len(set(rows)) == 1
    same = project.run("windtunnel", "compare", "HEAD", "reports", "--markdown")
    assert "Metrics that differ\n\nNone." in same
    line = project.run("windtunnel", "compare", "HEAD", "sweep-epsilon-02", code=2)
    assert "Did you mean 'sweep-epsilon-0.2'?" in line
    assert "Traceback" not in line


def test_dvcs_own_tables_and_plots_speak_of_the_budgets(project):
    diff = project.run("dvc", "metrics", "diff", "HEAD", "sweep-epsilon-0.2")
    assert "worst_case.accuracy" in diff
    shown = project.run("dvc", "exp", "show", "--only-changed", "--drop", "_ci_|Created|Executor", "--csv")
    header = shown.splitlines()[0].split(",")
    assert {"worst_case.accuracy", "fgsm.adversarial_accuracy", "budget.epsilon"} <= set(header)
    assert not {"clean.accuracy", "seed", "fgsm.library"} & set(header)
    project.run("dvc", "plots", "diff", "HEAD", "sweep-epsilon-0.2", "--out", "plots")
    html = (project.folder / "plots" / "index.html").read_text()
    for title in ("Robustness sandwich", "Accuracy per assessment", "Clean accuracy per class"):
        assert title in html
    assert '"rev": "sweep-epsilon-0.2"' in html
    shutil.rmtree(project.folder / "plots")
    dag = project.run("dvc", "dag", "--collapse-foreach-matrix")
    assert "attack" in dag
    assert "attack@fgsm" not in dag


def test_a_colleague_gets_the_results_from_a_remote(project, tmp_path):
    project.run("dvc", "remote", "add", "--default", "--local", "store", str(tmp_path / "remote"))
    project.run("dvc", "push", "--run-cache")
    shutil.move(project.folder / ".dvc" / "cache", tmp_path / "cache")
    shutil.rmtree(project.folder / "reports" / "robustness")
    assert "Metrics that differ" in project.run("windtunnel", "compare", "HEAD", "HEAD")  # fetched, nothing checked out
    assert not (project.folder / "reports" / "robustness").exists()
    project.run("dvc", "pull")
    assert (project.folder / "reports" / "robustness" / "fgsm" / "robustness_data.pt").is_file()
    ran = project.repro()
    assert ran == ["track"]
    project.run("windtunnel", "compare", "sweep-epsilon-0.2", "HEAD", code=2)  # that one was never pushed
    shutil.rmtree(project.folder / ".dvc" / "cache")
    shutil.move(tmp_path / "cache", project.folder / ".dvc" / "cache")
    project.run("dvc", "remote", "remove", "--local", "store")


@pytest.fixture(scope="module")
def ui(project):
    """The address that `windtunnel ui` opens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(project.folder / "src")}
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [str(Path(sys.executable).parent / "windtunnel"), "ui", "--no-open", "--port", str(port)]
    with (project.folder / "ui.log").open("w") as log:
        server = subprocess.Popen(command, cwd=project.folder, env=environment, stdout=log, stderr=log)
    try:
        yield address_of(project.folder / "ui.log", server)
    finally:
        server.terminate()
        server.wait()
    with socket.socket() as after:
        assert after.connect_ex(("127.0.0.1", port)), "the server outlived windtunnel ui"


def address_of(log: Path, server: subprocess.Popen) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"the runs: (\S+)", log.read_text()):
            return found.group(1)
        time.sleep(0.2)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium from Debian's packages; skipped where it is not installed."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1900,1400",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(argument)
    made = Chrome(options=options, service=Service(driver))
    yield made
    made.quit()


def wait_for(browser, found, what):
    """The first true answer of `found`; a picture of the page where there is none within a minute."""
    from selenium.common.exceptions import StaleElementReferenceException

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if answer := found():
                return answer
        except StaleElementReferenceException:
            pass
        time.sleep(0.2)
    with tempfile.NamedTemporaryFile(suffix=".png", delete=False) as picture:
        browser.save_screenshot(picture.name)
    raise AssertionError(f"the page does not show {what}; see {picture.name}")


def text_of(browser):
    return browser.find_element("tag name", "body").text


def look(browser, name):
    """Keep a picture of the page for a person, where WINDTUNNEL_PICTURES names a folder."""
    if folder := os.environ.get("WINDTUNNEL_PICTURES"):
        time.sleep(1)  # what fades in
        browser.save_screenshot(str(Path(folder) / f"mlflow-{name}.png"))


def _unfold_the_sweep(browser):
    """MLflow opens it by itself, unless the shared view arrives after the runs: then one click does."""
    sweep = "//a[contains(., 'sweep: budget.epsilon')]/ancestor::*[@role='gridcell']"
    (cell,) = wait_for(browser, lambda: browser.find_elements("xpath", sweep), "the sweep")
    time.sleep(3)  # for what MLflow opens by itself
    if not browser.find_elements("xpath", "//a[contains(., 'Linf 0.2')]"):
        cell.find_element("css selector", "button").click()
    wait_for(browser, lambda: browser.find_elements("xpath", "//a[contains(., 'Linf 0.2')]"), "a state of the sweep")


def test_the_run_list_shows_the_headline_metrics_as_columns(ui, browser):
    browser.get(ui)
    _unfold_the_sweep(browser)
    cells = wait_for(
        browser,
        lambda: [c for c in browser.find_elements("css selector", "[role=gridcell]") if c.text == "0.2"],
        "the budget of a run",
    )
    assert cells[0].get_attribute("col-id") == "params.`budget.epsilon`"
    wanted = {"metrics.`clean/accuracy`", "metrics.`worst_case/accuracy`", "params.`budget.epsilon`"}
    wait_for(
        browser,
        lambda: (
            wanted
            <= {e.get_attribute("col-id") for e in browser.find_elements("css selector", "[role=columnheader][col-id]")}
        ),
        "the headline columns",
    )
    values = browser.find_elements("css selector", "[role=gridcell][col-id='metrics.`worst_case/accuracy`']")
    # Its two states have a number there, and the sweep has none: the last of its series would pass for its own.
    assert len([v for v in values if re.fullmatch(r"[01](\.\d+)?", v.text)]) == 2
    look(browser, "runs")


def _close_the_assistant(browser):
    """MLflow opens it beside the page for who was never there, until it is closed."""
    title = wait_for(
        browser, lambda: browser.find_elements("xpath", "//*[text()='MLflow Assistant']"), "the assistant"
    )[0]
    browser.execute_script(
        "let e = arguments[0]; while (e.querySelectorAll('button').length < 3) e = e.parentElement;"
        "[...e.querySelectorAll('button')][2].click()",
        title,
    )
    wait_for(
        browser,
        lambda: "Ask questions about your experiments" not in text_of(browser),
        "the page without the assistant",
    )


def test_at_1400_pixels_a_person_sees_epsilon_sanity_and_decision_of_each_run(ui, browser):
    browser.set_window_size(1400, 1000)
    try:
        browser.get(ui)
        _close_the_assistant(browser)
        wanted = ("params.`budget.epsilon`", "tags.`sanity.status`", "tags.`windtunnel.decision`")
        for column in wanted:
            header = f"[role=columnheader][col-id='{column}']"
            (cell,) = wait_for(browser, lambda h=header: browser.find_elements("css selector", h), column)
            assert cell.rect["x"] + cell.rect["width"] <= 1400
        _unfold_the_sweep(browser)
        wait_for(browser, lambda: "passed" in text_of(browser), "what the gate decided")
        # The states of the sweep stand below it, a step further in.
        names = ["sweep: budget.epsilon 0.05, 0.2", "Linf 0.2", "Linf 0.05"]
        places = [browser.find_element("xpath", f"//a[contains(., '{name}')]").rect for name in names]
        assert places[0]["y"] < min(places[1]["y"], places[2]["y"])
        assert places[0]["x"] < min(places[1]["x"], places[2]["x"])
        look(browser, "runs-1400")
    finally:
        browser.set_window_size(1900, 1400)


def test_the_models_page_shows_the_assessed_model_with_its_numbers(project, ui, browser):
    client, parents, _ = project.parents()
    experiment = parents[0].info.experiment_id
    (model,) = client.search_logged_models([experiment])
    browser.get(f"{ui.split('/#', 1)[0]}/#/experiments/{experiment}/models?workflowType=machine_learning")
    wait_for(browser, lambda: model.name in text_of(browser), "the model by its digest")
    numbers = lambda: re.findall(r"^0\.\d+$", text_of(browser), re.MULTILINE)  # noqa: E731
    wait_for(browser, numbers, "numbers beside it")
    look(browser, "models")


def test_the_run_of_a_sweep_links_its_states_and_shows_its_figure(project, ui, browser):
    client, parents, _ = project.parents()
    experiment = parents[0].info.experiment_id
    (sweep,) = client.search_runs([experiment], filter_string="tags.`windtunnel.role` = 'sweep'")
    assert sweep.info.run_name == "sweep: budget.epsilon 0.05, 0.2"
    assert {p.data.tags["mlflow.parentRunId"] for p in parents} == {sweep.info.run_id}
    root = ui.split("/#", 1)[0]
    browser.get(f"{root}/#/experiments/{experiment}/runs/{sweep.info.run_id}?workflowType=machine_learning")
    wait_for(browser, lambda: "sweep: budget.epsilon 0.05, 0.2" in text_of(browser), "the name of the sweep")
    picture = wait_for(browser, lambda: browser.find_elements("css selector", "img[src*='sweep.png']"), "the figure")[0]
    wait_for(
        browser, lambda: browser.execute_script("return arguments[0].naturalWidth", picture) > 300, "the figure, loaded"
    )
    links = {link.text for link in browser.find_elements("css selector", "a[href*='/runs/']")}
    assert {p.info.run_name for p in parents} <= links
    look(browser, "sweep")


def test_the_comparison_page_shows_which_params_and_metrics_differ(project, ui, browser):
    client, parents, _ = project.parents()
    experiment = client.get_experiment_by_name("test").experiment_id
    root = ui.split("/#", 1)[0]
    of = f"runs={quote(json.dumps([p.info.run_id for p in parents]))}&experiments={quote(json.dumps([experiment]))}"
    browser.get(f"{root}/#/compare-runs?{of}&workflowType=machine_learning")  # else the page opens in the GenAI view
    wait_for(browser, lambda: text_of(browser).count("Show diff only") == 3, "params, metrics and tags")
    for switch in browser.find_elements("css selector", "button[role=switch]"):
        browser.execute_script("arguments[0].click()", switch)
    text = wait_for(browser, lambda: "budget.norm" not in text_of(browser) and text_of(browser), "what differs alone")
    assert re.search(r"budget\.epsilon\s+0\.(05|2)\s+0\.(05|2)\s", text)
    assert "fgsm/adversarial_accuracy" in text
    assert "clean/nll" not in text
    look(browser, "comparison")


def test_the_run_page_shows_description_caveats_figure_and_report(project, ui, browser):
    _, parents, _ = project.parents()
    run = next(p for p in parents if p.data.params["budget.epsilon"] == "0.2").info
    root = ui.split("/#", 1)[0]
    page = f"{root}/#/experiments/{run.experiment_id}/runs/{run.run_id}?workflowType=machine_learning"
    browser.get(page)
    wait_for(browser, lambda: "Accuracy at Linf 0.2: worst case" in text_of(browser), "the description")
    more = browser.find_element("xpath", "//*[text()='Show more']")
    browser.execute_script("arguments[0].click()", more)
    wait_for(browser, lambda: "No formal verification ran: nothing here is verified." in text_of(browser), "the caveat")
    figure = browser.find_element("css selector", "img[src*='SandwichVisualiser_0.png']")
    wait_for(browser, lambda: browser.execute_script("return arguments[0].naturalWidth", figure) > 300, "the figure")
    look(browser, "run")
    report = browser.find_element("link text", "HTML report").get_attribute("href")
    assert b"Robustness assessment" in urllib.request.urlopen(report).read()
    browser.get(page.replace("?", "/artifacts?"))
    wait_for(browser, lambda: {"report.pdf", "params.yaml", "dvc.lock"} <= {*text_of(browser).split()}, "the artifacts")
