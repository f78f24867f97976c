"""The folder that `fedveca deploy init` writes: an app, the server's part, and one part for each device."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedveca.deploy.provision import write_app, write_certificates, write_key
from fedveca.deploy.serve import deployable
from fedveca.runs.experiment import Experiment

QUIET = "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
SERVER = """#!/bin/sh
# The SuperLink, with TLS, and the keys it trusts. Ctrl-C ends it; started again it knows its nodes and runs.
cd "$(dirname "$0")" || exit 1
export FLWR_HOME="$PWD/flower" FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
{quiet}
mkdir -p flower
cat > flower/config.toml <<END
[superlink]
default = "fedveca"

[superlink.fedveca]
address = "{host}:{port}"
root-certificates = "$PWD/tls/ca.pem"

[superlink.simulation]
address = ":local:"
END
flower-superlink --host {bind} --port {port} --database "$PWD/flower/state.db" --enable-supernode-auth \\
  --ssl-ca-certfile tls/ca.pem --ssl-certfile tls/server.pem --ssl-keyfile tls/server.key \\
  --disable-runtime-dependency-installation &
link=$!
trap 'kill $link 2>/dev/null; wait $link' EXIT
trap 'exit 130' INT TERM
until flwr supernode list fedveca >/dev/null 2>&1; do kill -0 $link || exit 1; sleep 1; done
for key in keys/*.pub; do
  flwr supernode register "$key" fedveca 2>&1 | grep -v -i 'already in use' || true
done
echo "ready: start the nodes, then ./run.sh"
wait $link
"""
RUN = """#!/bin/sh
# Starts the experiment over the connected nodes; -c 'rounds=50' and the like change a setting.
cd "$(dirname "$0")" || exit 1
export FLWR_HOME="$PWD/flower"
{quiet}
exec flwr run ../app fedveca --stream "$@"
"""
NODE = """#!/bin/sh
# Device {i}: its data are what FEDVECA_NODE_DATA names (an npz with x and y, a folder with x.npy and y.npy, or
# package.module:load), else its share of the data set {data}.
cd "$(dirname "$0")" || exit 1
export FLWR_HOME="$PWD/flower" FEDVECA_NODE_DIR="$PWD" FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
PATH="$(python3 -m fedveca.deploy.warm .):$PATH"
{quiet}
exec flower-supernode --superlink {host}:{port} --root-certificates ca.pem --auth-supernode-private-key key \\
  --node-config 'partition-id={i} num-partitions={clients}' "$@"
"""
README = """# A federation of {clients} devices

`{method}` on `{data}`, model `{model}`, over Flower with TLS and a key for each device. Every machine needs Python
3.11 or newer and `pip install 'fedveca[flower]'`.

1. **Server** ({host}). Keep `app/` and `server/` here. `server/start.sh` starts the SuperLink on port {port} and
   registers the devices' public keys.
2. **Each device.** Copy the folder `node-I/` to device I, and no other: it holds that device's private key. There:

       FEDVECA_NODE_DATA=/path/to/own.npz ./start.sh

   An npz holds `x` (rows) and `y` (labels); a folder holds `x.npy` and `y.npy`; `package.module:load` names a function
   that returns both. Without it a device takes its share of `{data}`. Raw data never leave the device.
3. **Go.** When the devices are connected: `server/run.sh`. The run folder appears where `out` in
   `app/pyproject.toml` says, else below `server/runs/`; `fedveca` reads it like any other run's.

The server tests on the data set `{data}`, or on `FEDVECA_TEST_DATA` (the same three forms). If the server dies, start
it again and go on: `server/run.sh -c 'resume="runs/..."'`. Every setting stands in `app/pyproject.toml`; `fedveca list`
explains them.

In Flower's own simulation, without any device:

    flwr run app simulation --federation-config 'num-supernodes={clients}' --stream

(with `FLWR_HOME` set to `server/flower` after its first start, or any connection whose address is `:local:`).

`server/tls/server.key` and every `node-I/key` are secrets. The certificates are valid for a year; `fedveca deploy init`
makes new ones.
"""


def write_kit(folder: Path, e: Experiment, host: str, port: int) -> None:
    """Everything or nothing: a folder that was there before is left alone."""
    deployable(e)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already exists and is not empty; name another folder")
    if not host or any(c.isspace() or c in "\"'$`\\" for c in host):
        raise ValueError(f"--host {host!r} is not a host name or address")
    if not 1 <= port <= 65535:
        raise ValueError(f"--port {port} is out of range; allowed: [1, 65535]")
    try:
        _write(folder, e, host, port)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(folder: Path, e: Experiment, host: str, port: int) -> None:
    bind = "127.0.0.1" if host in ("127.0.0.1", "localhost") else "0.0.0.0"
    words = {"quiet": QUIET, "host": host, "port": port, "bind": bind, "clients": e.clients}
    words |= {"method": e.method, "data": e.data, "model": e.model}
    write_app(folder / "app", e)
    write_certificates(folder / "server" / "tls", list(dict.fromkeys([host, "127.0.0.1", "localhost"])))
    (folder / "README.md").write_text(README.format(**words))
    _script(folder / "server" / "start.sh", SERVER.format(**words))
    _script(folder / "server" / "run.sh", RUN.format(**words))
    for i in range(e.clients):
        write_key(folder / f"node-{i}" / "key", folder / "server" / "keys" / f"node-{i}.pub")
        shutil.copy(folder / "server" / "tls" / "ca.pem", folder / f"node-{i}" / "ca.pem")
        _script(folder / f"node-{i}" / "start.sh", NODE.format(i=i, **words))


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
