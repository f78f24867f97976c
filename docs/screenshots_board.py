"""Makes docs/images/board*.png from real runs, one of them being written while the picture is taken.

    python docs/screenshots_board.py [--runs FOLDER]

Needs Chromium and Playwright. Without --runs it first compares six methods on digits, two seeds.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

FEDVECA = [sys.executable, "-m", "fedveca.cli"]
IMAGES = Path(__file__).parent / "images"
CHOSEN = "#run=digits-compare/fedveca-seed0&run=digits-compare/scaffold-seed0&run=digits-compare/fedavg-seed0"


def settled(page: Any, charts: int) -> None:
    """All curves and the first heat map are drawn."""
    page.wait_for_function(f"document.querySelectorAll('#charts .main-svg').length >= {charts}", timeout=120_000)
    page.wait_for_function("document.querySelector('#heats .main-svg')", timeout=120_000)
    page.wait_for_timeout(1500)


def keep(page: Any, name: str) -> None:
    """Flat colours: 256 of them are enough, and a third of the bytes."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


def shots(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def page(width: int, height: int, **more: Any) -> Any:
            return browser.new_page(
                viewport={"width": width, "height": height}, device_scale_factor=1.5, bypass_csp=True, **more
            )

        live = page(1360, 1640)
        live.goto(f"{address}#run=twenty-clients")
        live.wait_for_function(
            "Number(document.querySelector('[data-id=twenty-clients] .progress b')?.textContent.split(' ')[0]) >= 60",
            timeout=300_000,
        )
        settled(live, 6)
        keep(live, "board-live")
        over = page(1360, 1500)
        over.goto(address + CHOSEN)
        settled(over, 6)
        keep(over, "board")
        over.close()
        live.close()
        dark = page(1360, 1500, color_scheme="dark")
        dark.goto(address + CHOSEN)
        settled(dark, 6)
        keep(dark, "board-dark")
        phone = page(390, 844, color_scheme="light")
        phone.goto(address + CHOSEN)
        phone.wait_for_function("document.querySelector('#charts figure')", timeout=120_000)
        phone.evaluate("document.getElementById('view').scrollIntoView()")  # what is out of sight is not drawn
        phone.wait_for_function("document.querySelector('#charts .main-svg')", timeout=120_000)
        phone.wait_for_timeout(1500)
        keep(phone, "board-phone")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="a folder as `fedveca compare` leaves it")
    args = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        if args.runs:
            shutil.copytree(args.runs, root / "digits-compare")
        else:
            words = ["compare", "digits-case3", "rounds=60", "--seeds", "2", "--out", str(root / "digits-compare")]
            subprocess.run([*FEDVECA, *words, "--quiet"], check=True)
        words = ["digits-case3", "partition=dirichlet", "clients=20", "alpha=0.9", "rounds=3000"]
        live = subprocess.Popen([*FEDVECA, "run", *words, "--out", str(root / "twenty-clients"), "--quiet"])
        words = [*FEDVECA, "board", "runs", "--port", "0"]
        board = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder)
        try:
            found = re.search(r"http://\S+", board.stdout.readline() if board.stdout else "")
            assert found
            shots(found[0])
        finally:
            for process in (board, live):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
