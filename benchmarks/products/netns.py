"""Three devices behind a bad line: network namespaces, a veth pair each, 50 ms delay and 5 % loss both ways.

    sudo python -m benchmarks.products.netns --rounds 5 --out netns.json

The federation is what `fedveca deploy init` writes, started by its own scripts inside the namespaces. Where the kernel
has netem the line is netem's; where it has not, each veth pair is cut in two and this program carries every frame from
one half to the other, late or not at all, so TCP sees the same delay and the same loss.
"""

from __future__ import annotations

import argparse
import array
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SERVER, WIRE, NODES = "fv-server", "fv-wire", ["fv-node0", "fv-node1", "fv-node2"]
HOST, PORT = "10.77.0.1", 8000
CONNECT = f"""
import socket, time
began = time.monotonic()
socket.create_connection(("{HOST}", {PORT})).close()
print(time.monotonic() - began)
"""
SIOCETHTOOL = 0x8946
OFFLOADS = (0x15, 0x17, 0x1F, 0x24, 0x2C)  # ETHTOOL_SRXCSUM, STXCSUM, STSO, SGSO, SGRO


def sh(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done


def inside(space: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", space, *words]


def has_netem() -> bool:
    done = sh(*inside(WIRE, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"), check=False)
    sh(*inside(WIRE, "tc", "qdisc", "del", "dev", "lo", "root"), check=False)
    return done.returncode == 0


def lay(delay: float, loss: float) -> str:
    """The namespaces and their lines; says what makes them bad."""
    for space in (SERVER, WIRE, *NODES):
        sh("ip", "netns", "add", space)
        sh(*inside(space, "ip", "link", "set", "lo", "up"))
    netem = has_netem()
    sh(*inside(SERVER, "ip", "link", "add", "br0", "type", "bridge"))
    sh(*inside(SERVER, "ip", "addr", "add", f"{HOST}/24", "dev", "br0"))
    sh(*inside(SERVER, "ip", "link", "set", "br0", "up"))
    for i, node in enumerate(NODES):
        if netem:
            sh("ip", "link", "add", f"s{i}", "netns", SERVER, "type", "veth", "peer", "name", "eth0", "netns", node)
        else:
            sh("ip", "link", "add", f"s{i}", "netns", SERVER, "type", "veth", "peer", "name", f"a{i}", "netns", WIRE)
            sh("ip", "link", "add", "eth0", "netns", node, "type", "veth", "peer", "name", f"b{i}", "netns", WIRE)
            for end in (f"a{i}", f"b{i}"):
                sh(*inside(WIRE, "ip", "link", "set", end, "up"))
        sh(*inside(SERVER, "ip", "link", "set", f"s{i}", "master", "br0", "up"))
        sh(*inside(node, "ip", "addr", "add", f"10.77.0.{10 + i}/24", "dev", "eth0"))
        sh(*inside(node, "ip", "link", "set", "eth0", "up"))
        for space, end in ((SERVER, f"s{i}"), (node, "eth0")):
            if netem:
                how = ("delay", f"{1000 * delay:g}ms", "loss", f"{100 * loss:g}%")
                sh(*inside(space, "tc", "qdisc", "add", "dev", end, "root", "netem", *how))
            else:
                sh(*inside(space, sys.executable, __file__, "--plain", end))
    return "netem" if netem else "frames carried by this program (this kernel has no netem)"


def plain(name: str) -> None:
    """Frames as they cross a cable: whole checksums, no larger than the MTU."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for what in OFFLOADS:
            value = array.array("B", struct.pack("II", what, 0))
            request = struct.pack("16sP", name.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(control, SIOCETHTOOL, request)
            except OSError as error:
                if what != 0x15:
                    raise SystemExit(f"{name}: offload {what:#x} stays on: {error}") from error


def carry(delay: float, loss: float) -> None:
    """Every frame of a_i to b_i and back, `delay` later, but for a share of `loss`; says how many at the end."""
    ends, count = {}, {"carried": 0, "lost": 0}
    for i in range(len(NODES)):
        pair = []
        for name in (f"a{i}", f"b{i}"):
            line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            line.bind((name, 0))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
            pair.append(line)
        ends[pair[0]], ends[pair[1]] = pair[1], pair[0]
    due: list[tuple[float, int, socket.socket, bytes]] = []
    number, chance, going = itertools.count(), random.Random(0), [True]
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    while going:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.2
        for line in select.select(list(ends), [], [], min(wait, 0.2))[0]:
            frame, where = line.recvfrom(65536)
            if where[2] == socket.PACKET_OUTGOING:  # our own
                continue
            if chance.random() < loss:
                count["lost"] += 1
            else:
                heapq.heappush(due, (time.monotonic() + delay, next(number), ends[line], frame))
        while due and due[0][0] <= time.monotonic():
            _, _, line, frame = heapq.heappop(due)
            line.send(frame)
            count["carried"] += 1
    print(json.dumps(count), flush=True)


def train(rounds: int, words: list[str], delay: float, loss: float) -> dict[str, object]:
    """Lays the lines, starts the kit's scripts in the namespaces, waits for the run, takes all down."""
    how = lay(delay, loss)
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "kit"
        try:
            if "carried" in how:
                relay = subprocess.Popen(
                    inside(WIRE, sys.executable, __file__, "--carry", str(delay), str(loss)), stdout=subprocess.PIPE
                )
            init = ["deploy", "init", str(folder), *words, f"rounds={rounds}", "--nodes", "3", "--host", HOST]
            subprocess.run([sys.executable, "-m", "fedveca.cli", *init], check=True)
            environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

            def start(space: str, script: Path, *more: str) -> subprocess.Popen[bytes]:
                command = inside(space, str(script), *more)
                with open(f"{script}.log", "wb") as log:
                    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
                started.append(process)
                return process

            begun = time.monotonic()
            start(SERVER, folder / "server" / "start.sh")
            _until(lambda: b"ready" in (folder / "server" / "start.sh.log").read_bytes(), 300)
            for i, node in enumerate(NODES):
                start(node, folder / f"node-{i}" / "start.sh")
            connect = [float(sh(*inside(NODES[0], sys.executable, "-c", CONNECT)).stdout) for _ in range(10)]
            out = folder / "run"
            start(SERVER, folder / "server" / "run.sh", "-c", f'out="{out}"')
            _until((out / "summary.json").exists, 1800)
            lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
            summary = json.loads((out / "summary.json").read_text())
            result = {
                "line": how,
                "delay": delay,
                "loss": loss,
                "seconds_a_round": [line["seconds"] for line in lines],
                "answered": [line["ids"] for line in lines],
                "faults": [line.get("faults", []) for line in lines],
                "test_accuracy": summary["last"]["test_accuracy"],
                "seconds": time.monotonic() - begun,
                "seconds_to_connect": statistics.median(connect),
                "bytes_up": lines[0]["bytes_up"],
                "bytes_down": lines[0]["bytes_down"],
            }
            if "carried" in how:
                relay.terminate()
                result["frames"] = json.loads(relay.communicate(timeout=20)[0])
            return result
        except BaseException:
            for path in folder.rglob("*.log"):
                print(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            raise
        finally:
            for process in reversed(started):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            for process in started:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            if "carried" in how and relay.poll() is None:
                relay.terminate()
            clear()


def _until(what: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.5)


def clear() -> None:
    for space in (SERVER, WIRE, *NODES):
        sh("ip", "netns", "del", space, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds, each way")
    parser.add_argument("--loss", type=float, default=0.05, help="share of the frames, each way")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plain", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--carry", nargs=2, type=float, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", default=["digits-case3", "round_timeout=600"])
    args = parser.parse_args()
    if args.plain:
        return plain(args.plain)
    if args.carry:
        return carry(*args.carry)
    clear()
    results = [train(args.rounds, args.words, delay, loss) for delay, loss in ((0.0, 0.0), (args.delay, args.loss))]
    print(json.dumps(results, indent=1))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
