"""What a federation needs before it starts: a Flower app, certificates for TLS, and a key for every node."""

from __future__ import annotations

import datetime
import ipaddress
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


def write_certificates(folder: Path, hosts: list[str], days: int = 365) -> None:
    """Writes ca.pem, server.pem and server.key into `folder`; the authority's own key is not kept."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def make_certificate(name: str, owner: ec.EllipticCurvePrivateKey, is_authority: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedveca federation")])
        draft = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(owner.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(owner.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=is_authority,
                    crl_sign=is_authority,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        if not is_authority:
            names = [x509.SubjectAlternativeName([name_host(host) for host in hosts])]
            draft = draft.add_extension(names[0], critical=False)
            draft = draft.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return draft.sign(authority, hashes.SHA256())

    def name_host(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    pem = serialization.Encoding.PEM
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "ca.pem", make_certificate("fedveca federation", authority, True).public_bytes(pem))
    write_atomic(folder / "server.pem", make_certificate(hosts[0], key, False).public_bytes(pem))
    plain = serialization.NoEncryption()
    write_secret(folder / "server.key", key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


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
