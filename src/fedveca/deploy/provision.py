"""What a federation needs before it starts: a Flower app, and a key for every node."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import write_atomic

_APP = '''"""FedVeca on Flower: two functions, called from a ServerApp and a ClientApp."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedveca import answer, serve

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    serve(grid, context)


@client.train()
def train(message, context):
    return answer(message, context)


@client.query()
def query(message, context):
    return answer(message, context)
'''
_PROJECT = """[project]
name = "fedveca-app"
version = "1.0.0"
description = "A federation of {clients} clients"
license = "Apache-2.0"
dependencies = ["fedveca[flower]"]

[tool.flwr.app]
publisher = "fedveca"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
out = ""
resume = ""
check = ""
"""


def require_flower() -> None:
    """Raises UserError where the packages of the extra `flower` are not installed."""
    if find_spec("flwr") is None or find_spec("psutil") is None:
        raise UserError("deploy needs the extra fedveca[flower]: pip install 'fedveca[flower]'")


def write_app(folder: Path, e: Experiment) -> None:
    """Writes a Flower app that runs the experiment; its run-config is the experiment's settings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(_APP)
    (folder / "pyproject.toml").write_text(_PROJECT.format(clients=e.clients) + e.toml())


def write_key(private: Path, public: Path) -> None:
    """Writes a key pair for a node, P-384 in OpenSSH's form, as Flower expects it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(
        private,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(
        public,
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n",
    )


def write_secret(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
