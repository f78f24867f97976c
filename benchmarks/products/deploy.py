"""A round on Flower: bare Flower's empty round and ours, one after the other in one run, and where the time goes.

    python -m benchmarks.products.deploy --nodes 2 --rounds 5 --out deploy.json

Both run on a SuperLink and SuperNodes of their own on this machine, with TLS and node keys, behind our gateway. Bare
Flower answers an empty message and is polled by Grid.send_and_receive, all else at its defaults (poll=0); ours trains
the squared SVM with FedVeca.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from fedveca.deploy.launch import Federation
from fedveca.deploy.pace import DEFAULT_POLL
from fedveca.deploy.provision import write_app
from fedveca.deploy.superlink import FLOWER_ENVIRONMENT
from fedveca.runs.experiment import Experiment

CLIENT = '''
import json, os, time
from pathlib import Path

TIMES = Path(os.environ["FEDVECA_TIMES"])


def born():
    """When this process was started, on the wall clock."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def note(**times):
    with open(TIMES / f"{os.getpid()}.json", "w") as file:
        json.dump(times, file)
'''
BARE = (
    '''"""An empty round."""

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
'''
    + CLIENT
    + """
server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    rounds, nodes = context.run_config["rounds"], context.run_config["clients"]
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.5)
    lines = []
    for k in range(-1, rounds):
        asked = time.time()
        messages = [Message(RecordDict(), node, "query", group_id=str(k)) for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
        lines.append({"asked": asked, "sent": asked, "answered": time.time()})
        assert len(replies) == nodes and not any(reply.has_error() for reply in replies)
    Path(context.run_config["out"]).write_text(json.dumps(lines[1:]))


@client.query()
def query(message, context):
    began = time.time()
    reply = Message(RecordDict(), reply_to=message)
    note(born=born(), began=began, ended=time.time())
    return reply
"""
)
OURS = (
    '''"""Our round, timed from outside."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedveca import answer, serve
'''
    + CLIENT
    + '''
server = ServerApp()
client = ClientApp()


class Timed:
    """A Grid that notes when orders went out and when the last answer was there."""

    def __init__(self, grid):
        self.grid, self.lines = grid, []

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        asked = time.time()
        ids = self.grid.push_messages(messages)
        if any(message.metadata.message_type == "train" for message in messages):
            self.lines.append({"asked": asked, "sent": time.time()})
        return ids

    def pull_messages(self, ids):
        replies = list(self.grid.pull_messages(ids))
        if replies and self.lines:
            self.lines[-1]["answered"] = time.time()
        return replies


@server.main()
def main(grid, context):
    timed = Timed(grid)
    run = serve(timed, context)
    for line, round in zip(timed.lines, run.rounds):
        line["bytes_up"], line["bytes_down"] = round["bytes_up"], round["bytes_down"]
    Path(context.run_config["times"]).write_text(json.dumps(timed.lines[1:]))


@client.train()
def train(message, context):
    began = time.time()
    reply = answer(message, context)
    note(born=born(), began=began, ended=time.time())
    return reply


@client.query()
def query(message, context):
    return answer(message, context)
'''
)
PARTS = {
    "wait": "order sent until Flower's process starts on the node (bare: the SuperNode sleeps up to 3 s)",
    "process": "that process: imports Flower, pulls the message, loads the app",
    "work": "the app's own function: for us the worker's steps and the way there",
    "back": "end of it until the server has the reply (bare: the SuperNode looks every 0.5 s, the server every 3 s)",
    "server": "reply there until the next order is sent: update, test, record, upload",
}


def one(which: str, nodes: int, rounds: int, e: Experiment) -> list[dict[str, float]]:
    """The parts of every round, in seconds; each is the slowest node's."""
    with tempfile.TemporaryDirectory() as name:
        folder, times, out = Path(name), Path(name) / "times", Path(name) / "times.json"
        times.mkdir()
        write_app(folder / "app", e)
        (folder / "app" / "app.py").write_text(BARE if which == "bare" else OURS)
        project = folder / "app" / "pyproject.toml"
        project.write_text(project.read_text() + 'times = ""\n')
        more = {"FEDVECA_TIMES": str(times)} | ({"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0"} if which == "bare" else {})
        ours = which == "ours"
        with Federation(folder / "deployment", nodes, more, ours, DEFAULT_POLL if ours else 0.0) as federation:
            where = [f'out="{out}"'] if which == "bare" else [f'times="{out}"', f'out="{folder / "run"}"']
            federation.submit([*where, f"rounds={rounds + (which == 'ours')}"], folder / "app")
            until = time.monotonic() + 1800
            while not out.exists() or not out.read_text():
                federation.check()
                assert time.monotonic() < until, (folder / "deployment" / "superlink.log").read_text()[-2000:]
                time.sleep(0.5)
            lines = json.loads(out.read_text())
            seen = [json.loads(path.read_text()) for path in times.glob("*.json")]
    return [_parts(line, after, seen) for line, after in zip(lines, [*lines[1:], None], strict=True)]


def _parts(line: dict[str, float], after: dict[str, float] | None, seen: list[dict[str, float]]) -> dict[str, float]:
    mine = [s for s in seen if line["asked"] <= s["began"] <= line["answered"]]
    last = max(mine, key=lambda s: s["ended"])
    parts = {
        "wait": last["born"] - line["sent"],
        "process": last["began"] - last["born"],
        "work": last["ended"] - last["began"],
        "back": line["answered"] - last["ended"],
        "server": after["sent"] - line["answered"] if after else line["sent"] - line["asked"],
    }
    return parts | {"round": sum(parts.values())} | {n: line[n] for n in ("bytes_up", "bytes_down") if n in line}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", default="", help="folder that holds mnist; digits where none is given")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    data = {"data": "mnist", "data_dir": args.data} if args.data else {"data": "digits"}
    results = {}
    for nodes in args.nodes:
        e = Experiment(model="svm", batch=100, clients=nodes, rounds=args.rounds, keep="last", **data)
        table = {which: one(which, nodes, args.rounds, e) for which in ("bare", "ours")}
        median = {w: {p: statistics.median(r[p] for r in rows) for p in (*PARTS, "round")} for w, rows in table.items()}
        ratio = median["ours"]["round"] / median["bare"]["round"]
        results[str(nodes)] = {"median": median, "ratio": ratio, "rounds": table}
        print(f"\n{nodes} nodes, {args.rounds} rounds, {e.data}; median seconds")
        print(f"{'':10}{'bare':>8}{'ours':>8}")
        for part in (*PARTS, "round"):
            print(f"{part:10}{median['bare'][part]:8.2f}{median['ours'][part]:8.2f}  {PARTS.get(part, '')}")
        first = table["ours"][0]
        print(f"ours / bare = {ratio:.2f}; bytes up {first['bytes_up']}, down {first['bytes_down']}")
    if args.out:
        content = {"settings": FLOWER_ENVIRONMENT | {"poll": str(DEFAULT_POLL)}, "parts": PARTS, "nodes": results}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
