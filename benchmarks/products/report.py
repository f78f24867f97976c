"""How large a report is and how soon it is open: python -m benchmarks.products.report [RUNS] [--out report.json].

Without RUNS it first makes 60 runs of 100 rounds: six methods, ten seeds, on digits. Needs Chromium and Playwright.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment, preset
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report


def opened(browser: Any, path: Path) -> dict[str, float]:
    """Seconds from the start of loading until the first screen, and all figures, are drawn; and of the CPU in it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
    marks = page.evaluate("({...document.documentElement.dataset})")
    used = {entry["name"]: entry["value"] for entry in meter.send("Performance.getMetrics")["metrics"]}
    page.close()
    return {"seen": int(marks["seen"]) / 1000, "drawn": int(marks["drawn"]) / 1000, "cpu": round(used["ThreadTime"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        runs = args.runs or Path(folder) / "compare"
        if not args.runs:
            compare(Experiment(**preset("digits-case3") | {"rounds": 100}), 10, runs)
        start = time.perf_counter()
        made = write_report(find_runs([runs])[0], Path(folder) / "report.html")
        result: dict[str, Any] = {"runs": made["runs"], "bytes": made["bytes"], "written": time.perf_counter() - start}
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        result["opened"] = [opened(browser, Path(folder) / "report.html") for _ in range(args.repeat)]
        browser.close()
    for name in ("seen", "drawn", "cpu"):
        each = sorted(entry[name] for entry in result["opened"])
        print(f"{name}: least {each[0]:.2f} s, median {each[len(each) // 2]:.2f} s")
    print(f"{result['runs']} runs, {result['bytes'] / 1e6:.2f} MB, written in {result['written']:.1f} s")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
