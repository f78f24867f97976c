"""Makes the pictures of docs/images from real runs: python docs/screenshots.py [--runs FOLDER] [NAME ...].

Needs Chromium and Playwright. Without --runs it first compares six methods on digits, three seeds.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment, preset
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report

IMAGES = Path(__file__).parent / "images"


def report(browser: Any, runs: Path) -> bytes:
    """The head of a report: question, answer, table, and how far each method is from the best."""
    page = open_report(browser, runs)
    clip = {"x": 0, "y": 0, "width": 1240, "height": page.locator("h2").nth(1).bounding_box()["y"] - 12}
    return bytes(page.screenshot(full_page=True, clip=clip))


def report_clients(browser: Any, runs: Path) -> bytes:
    """The part of a report on clients: of 20 with their own mix of labels, tested before and after local steps."""
    with tempfile.TemporaryDirectory() as folder:
        mixed: dict[str, Any] = {"partition": "dirichlet", "concentration": 0.3, "clients": 20}
        tested: dict[str, Any] = {"test_by": "both", "test_share": 0.3, "finetune_steps": 5}
        settings = preset("digits-case3") | mixed | tested
        compare(Experiment(**settings), 3, Path(folder) / "clients", methods=("fedveca", "fedavg"))
        page = open_report(browser, Path(folder) / "clients")
    top, below = (page.locator(f"#s0-{name}").bounding_box()["y"] for name in ("clients", "inside"))
    clip = {"x": 0, "y": top, "width": 1240, "height": below - top - 12}
    return bytes(page.screenshot(full_page=True, clip=clip))


def open_report(browser: Any, runs: Path) -> Any:
    """The page of a report of these runs, once all its figures are drawn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_report(find_runs([runs])[0], path)
        page = browser.new_page(viewport={"width": 1240, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
        return page


SHOTS: dict[str, Callable[[Any, Path], bytes]] = {"report": report, "report-clients": report_clients}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(SHOTS)} (all)")
    parser.add_argument("--runs", type=Path, help="a folder as `fedveca compare` leaves it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        runs = args.runs or Path(folder) / "compare"
        if not args.runs and "report" in (args.names or SHOTS):
            compare(Experiment(**preset("digits-case3")), 3, runs)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        IMAGES.mkdir(exist_ok=True)
        for name in args.names or SHOTS:
            picture = Image.open(io.BytesIO(SHOTS[name](browser, runs))).convert("RGB")
            small = picture.quantize(256, kmeans=2, dither=Image.Dither.NONE)  # flat colours: a third of the bytes
            small.save(IMAGES / f"{name}.png", optimize=True)
            print(f"{IMAGES / name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
