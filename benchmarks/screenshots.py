"""The pictures of docs/images, made from the current run: report, sample browser and a sample, desktop and phone, light and dark.

python -m benchmarks.screenshots [--reports reports] [--output docs/images]

Other pages are pictured as well, in a folder of their own: the handbook after `make handbook`, MLflow's pages beside `windtunnel ui`:

python -m benchmarks.screenshots --output shots --page handbook=file://$PWD/site/index.html
python -m benchmarks.screenshots --output shots --page runs='http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=windtunnel'
"""

from __future__ import annotations

import argparse
import base64
import io
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from benchmarks.browser import chromium, resize
from windtunnel.core.sample_states import SampleState
from windtunnel.records.artifacts import read_artifacts
from windtunnel.reporting.compare.runs import run_in
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.view.site import write_site

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SCREENS = {"desktop": (1280, 1240), "phone": (390, 844)}
THEMES = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    parser.add_argument("--page", action="append", default=[], metavar="NAME=ADDRESS", help="another page to picture")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as driver:
        page = Path(scratch) / "report.html"
        render_html(build_report(given.reports, dated=True), page)
        list(write_site([run_in(given.reports, "run")], Path(scratch) / "view"))
        view = (Path(scratch) / "view" / "index.html").as_uri()
        pages = {"report": page.as_uri(), "view": view, "sample": f"{view}#sample={_broken_sample(given.reports)}"}
        pages |= dict(page.split("=", 1) for page in given.page)
        for name, address in pages.items():
            for screen, size in SCREENS.items():
                for theme in THEMES:
                    path = given.output / f"{name}-{screen}-{theme}.png"
                    path.write_bytes(picture(driver, address, size, theme))
                    print(path)


def _broken_sample(reports: Path) -> str:
    """Name the first sample of which an adversarial example is known."""
    summary = read_artifacts(reports / "summary")
    return summary.sample_names[int((summary.tensor("sample_states") == SampleState.BROKEN.code).nonzero()[0])]


def picture(driver: Chrome, page: str, size: tuple[int, int], theme: str) -> bytes:
    """The first screen of a page as PNG of 256 colours, which keeps the repository small."""
    resize(driver, *size)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    driver.get("about:blank")  # another fragment alone would load no page
    driver.get(page)
    time.sleep(6 if page.startswith("http") else 1)  # pictures are decoded; a server's page asks it for its content
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    small = Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
