"""What secure aggregation costs: bytes, seconds of its cryptography, of a simulated round and of a round on Flower.

    python -m benchmarks.products.secure --out docs/results/secure.json
    python -m benchmarks.products.secure --flower 5 --rounds 5 --out docs/results/secure.json

Bytes are counted for 430,698 parameters, the paper's CNN on MNIST. The cryptography is timed on vectors of that length,
all parties in one process one after another. Simulated rounds, and with `--flower N` rounds on N real nodes of this
machine, are timed with secure=off and secure=on in turn, so that a busy machine slows both; what counts is the ratio.
What is in --out already, and is not measured again, stays.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec

from fedveca.cohorts.secure.client import SecureClient
from fedveca.cohorts.secure.cohort import count_overhead
from fedveca.cohorts.secure.lengths import SESSION_BYTES
from fedveca.cohorts.secure.secure_settings import find_threshold
from fedveca.cohorts.secure.server import ServerSession
from fedveca.cohorts.secure.session import Session, read_revealed
from fedveca.deploy.launch import Federation
from fedveca.deploy.local import follow
from fedveca.deploy.provision import write_app
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.folder import Run

PARAMETERS = 430_698
VECTORS = {"fedavg": (1, 1, 2), "fedveca": (1, 2, 4), "scaffold": (2, 2, 2)}  # down, up, and numbers up
Row = dict[str, float]


def count_round(method: str, clients: int) -> Row:
    """Bytes of one round of all clients, open and secure."""
    down, up, numbers = VECTORS[method]
    plain = clients * (4 * PARAMETERS * (down + up) + 8 + 8 * numbers)
    more = sum(count_overhead(clients, clients, clients, up * PARAMETERS))
    return {"open": plain, "secure": plain + more, "ratio": round((plain + more) / plain, 4)}


def time_protocol(clients: int, lost: int) -> Row:
    """Processor seconds of the stages, per client or of the server; `lost` clients send no vector."""
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(clients)]
    peers = {i: key.public_key() for i, key in enumerate(keys)}
    parties = {i: SecureClient(i, key, peers, 2) for i, key in enumerate(keys)}
    session = Session(secrets.token_bytes(SESSION_BYTES), find_threshold(clients), tuple(range(clients)))
    server = ServerSession(session, {i: party.channel for i, party in parties.items()})
    arrived = list(range(clients - lost))
    vector = {"G": np.arange(PARAMETERS)}
    shared = time.process_time()
    for i, party in parties.items():
        server.add_shares(i, party.share(server.request))
    shared = time.process_time() - shared  # of this process, so that a busy machine does not count
    total = np.zeros(PARAMETERS, np.uint64)
    masked = time.process_time()
    for i in arrived:
        total += parties[i].mask(server.make_mask_request(i), vector)["G"]
    masked = time.process_time() - masked
    request = server.make_unmask_request(arrived)
    revealed = {i: read_revealed(parties[i].unmask(request), server.active) for i in arrived}
    unmasked = time.process_time()
    server.unmask(total, arrived, revealed)
    unmasked = time.process_time() - unmasked
    assert np.array_equal(total.view(np.int64), len(arrived) * np.arange(PARAMETERS))
    return {
        "share_per_client": round(shared / clients, 5),
        "mask_per_client": round(masked / len(arrived), 5),
        "unmask_at_server": round(unmasked, 5),
    }


def time_simulation(rounds: int) -> dict[str, Row]:
    """Seconds of a round, median over rounds that alternate between off and on."""
    tasks = {
        "svm, 1000 clients": Experiment(model="svm", clients=1000, partition="iid", batch=8, tau_0=5, keep="last"),
        "mlp, 100 clients": Experiment(model="mlp", clients=100, partition="iid", batch=8, tau_0=5, keep="last"),
    }
    choices: tuple[Literal["off", "on"], ...] = ("off", "on")
    found = {}
    for name, e in tasks.items():
        both = {choice: build(replace(e, secure=choice, method="fedavg")) for choice in choices}
        runs = {c: federate(b.algorithm, b.cohort, b.state, rounds + 2) for c, b in both.items()}
        seconds: dict[str, list[float]] = {"off": [], "on": []}
        for _ in range(rounds + 2):
            for choice, going in runs.items():
                seconds[choice].append(next(going)[1]["seconds"])
        off, on = (statistics.median(seconds[choice][2:]) for choice in choices)
        found[name] = {"off": round(off, 6), "on": round(on, 6), "ratio": round(on / off, 3)}
    return found


def time_flower(nodes: int, rounds: int) -> Row:
    """Seconds of a round on real nodes: two runs on one federation, after a first round that counts in neither."""
    e = Experiment(model="svm", clients=nodes, rounds=rounds + 1, batch=16, lr=0.05, keep="last", round_timeout=240.0)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder) / "deployment", nodes) as federation:
        for choice, least in (("off", 0), ("on", find_threshold(nodes))):
            app, out = Path(folder) / f"app-{choice}", Path(folder) / f"run-{choice}"
            write_app(app, replace(e, secure="on" if least else "off"))
            federation.introduce(least)
            federation.submit([f"out={json.dumps(str(out))}"], app)
            follow(federation, out, nodes)
            seconds[choice] = statistics.median(record["seconds"] for record in Run.open(out).rounds[1:])
    off, on = seconds["off"], seconds["on"]
    return {"nodes": nodes, "off": round(off, 2), "on": round(on, 2), "ratio": round(on / off, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products.secure", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--flower", type=int, default=0, metavar="N", help="time rounds on N real nodes, alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.flower:
        found["flower"] = time_flower(args.flower, args.rounds)
    else:
        found["bytes"] = {f"{m}, {n} clients": count_round(m, n) for m in VECTORS for n in (5, 50)}
        found["protocol"] = {
            f"{n} clients, {lost} lost": time_protocol(n, lost) for n, lost in ((5, 0), (5, 1), (20, 4))
        }
        found["simulation"] = time_simulation(args.rounds)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
