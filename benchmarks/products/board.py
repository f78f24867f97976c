"""How long the board takes: to list many runs, to show a long run of many clients, to follow it as it grows.

    python -m benchmarks.products.board [--runs 500] [--clients 50] [--rounds 2000] [--out board.json]

Run folders are written in the form that a run leaves, with drawn numbers. Needs fedveca[board], playwright, chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from fedveca.algorithms.registry import methods
from fedveca.runs.experiment import Experiment

TASKS = """
window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration)))
  .observe({ type: "longtask", buffered: true });
"""
LOOP = """(() => {
  const at = performance.now();
  let x = 0;
  for (let i = 0; i < 1e8; i++) x += i;
  return performance.now() - at;
})()"""  # how fast this machine is just now


def line(k: int, clients: int, chance: random.Random) -> str:
    each = {name: [chance.random() for _ in range(clients)] for name in ("beta", "delta", "A")}
    tau = [chance.randint(2, 50) for _ in range(clients)]
    record: dict[str, Any] = {"round": k, "ids": list(range(clients)), "left_out": [], "tau": tau} | each
    record |= {"tau_k": sum(tau) / clients, "L": chance.random(), "premise": chance.random(), "accepted": True}
    record |= {"train_loss": 2 / (k + 1) + chance.random(), "test_loss": chance.random(), "test_accuracy": k / (k + 50)}
    return json.dumps(record | {"seconds": 0.02, "bytes_up": 10**6, "bytes_down": 10**6}) + "\n"


def folder(path: Path, experiment: Experiment, rounds: int, ended: bool, chance: random.Random) -> None:
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(experiment.toml())
    with open(path / "rounds.jsonl", "w") as file:
        file.writelines(line(k, experiment.clients, chance) for k in range(rounds))
    if ended:
        score = {"round": rounds, "test_loss": chance.random(), "test_accuracy": chance.random()}
        (path / "summary.json").write_text(json.dumps({"tau_all": 1, "seconds": 1.0, "last": score, "kept": score}))


def ask(url: str) -> tuple[float, int]:
    began = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        size = len(answer.read())
    return time.perf_counter() - began, size


def ready(page: Any, what: str) -> float:
    """Milliseconds since the page's start at which something becomes true."""
    page.wait_for_function(what, polling="raf", timeout=60_000)
    return float(page.evaluate("performance.now()"))


def busy(processor: Any) -> float:
    """Seconds of processor time that the page's main thread has used: other programs do not count."""
    metrics = processor.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def measure(url: str, big: Path, args: argparse.Namespace, chance: random.Random) -> dict[str, Any]:
    out: dict[str, Any] = {}
    listed = [ask(f"{url}api/runs") for _ in range(6)]
    out["list_first_s"], out["list_again_s"] = listed[0][0], statistics.median(t for t, _ in listed[1:])
    out["list_bytes"] = listed[0][1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1800}, bypass_csp=True)
        page.goto(f"{url}#run=small-0")
        out["page_lists_ms"] = ready(page, f"document.getElementById('count').textContent === '{args.runs + 1} runs'")
        page.close()
        page = browser.new_page(viewport={"width": 1400, "height": 1800}, bypass_csp=True)
        page.add_init_script(TASKS)
        processor = page.context.new_cdp_session(page)
        processor.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(f"{url}#run=big")
        chart = "document.querySelector('figure[data-name=%s] .plot')?.data?.find((t) => t.meta)"
        out["first_paint_ms"] = page.evaluate(
            "new Promise((done) => new PerformanceObserver((l) => done(l.getEntries()[0].startTime))"
            ".observe({ type: 'paint', buffered: true }))"
        )
        out["first_curve_ms"] = ready(page, f"{chart % 'test_accuracy'}?.x.at(-1) === {args.rounds}")
        heat = "document.querySelector('#heats .plot')?.data?.[0].x.length > 100"
        out["all_pictures_ms"] = ready(page, heat)
        out["longest_task_at_start_ms"] = max(page.evaluate("tasks"), default=0)
        updates, tasks, before = [], [], busy(processor)
        for k in range(args.rounds, args.rounds + args.updates):
            page.evaluate("tasks.length = 0")
            page.wait_for_timeout(1200)
            began = time.perf_counter()
            with open(big / "rounds.jsonl", "a") as file:
                file.write(line(k, args.clients, chance))
            page.wait_for_function(f"{chart % 'test_accuracy'}?.x.at(-1) === {k + 1}", polling=20, timeout=60_000)
            updates.append(time.perf_counter() - began)
            page.wait_for_timeout(500)
            tasks += page.evaluate("tasks")
        out["round_to_screen_s"] = {"median": statistics.median(updates), "most": max(updates)}
        out["longest_task_while_growing_ms"] = max(tasks, default=0)
        out["processor_ms_an_update"] = (busy(processor) - before) * 1000 / args.updates
        out["loop_of_1e8_ms"] = page.evaluate(LOOP)
        out["load"] = os.getloadavg()[0]
        names = "&name=".join(("", "test_accuracy", "test_loss", "train_loss", "tau_k", "premise", "L"))
        timed = [ask(f"{url}api/curves?run=big&width=450{names}") for _ in range(5)]
        out["curves_s"], out["curves_bytes"] = statistics.median(t for t, _ in timed), timed[0][1]
        timed = [ask(f"{url}api/heat?run=big&name=tau&width=1200&height=180") for _ in range(5)]
        out["heat_s"], out["heat_bytes"] = statistics.median(t for t, _ in timed), timed[0][1]
        browser.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 500), ("clients", 50), ("rounds", 2000), ("updates", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    chance, names = random.Random(0), list(methods())
    with tempfile.TemporaryDirectory() as root:
        for i in range(args.runs):
            e = Experiment(method=names[i % len(names)], seed=i // len(names), rounds=100)
            folder(Path(root) / f"small-{i}", e, 100, i % 50 > 0, chance)
        big = Path(root) / "big"
        folder(big, Experiment(clients=args.clients, rounds=2 * args.rounds), args.rounds, False, chance)
        command = [sys.executable, "-m", "fedveca.cli", "board", root, "--port", "0"]
        board = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            found = re.search(r"http://\S+", board.stdout.readline() if board.stdout else "")
            assert found
            size = (big / "rounds.jsonl").stat().st_size
            result = {"runs": args.runs, "clients": args.clients, "rounds": args.rounds, "bytes_of_the_long_run": size}
            result |= measure(found[0], big, args, chance)
        finally:
            board.terminate()
            board.wait()
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
