"""Certificates over time: warnings before they expire, new ones from the same authority or from a new one."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from fedveca.cli import main
from fedveca.deploy.certificates import (
    count_days,
    list_expiry_warnings,
    read_certificates,
    read_expiry,
    renew_certificate,
    write_certificates,
)
from fedveca.errors import UserError

DAY = 86400.0
RENEW = "renew it with: fedveca deploy renew DIR"


def shake_hands(trusted: bytes, tls: Path, host: str = "127.0.0.1") -> bool:
    """Whether who trusts this authority accepts the server, in a real handshake."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls / "server.pem", tls / "server.key")
    client = ssl.create_default_context(cadata=trusted.decode())
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(near, server_hostname=host).close()
        return True
    except ssl.SSLError:
        return False
    finally:
        near.close()
        thread.join(10)


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    write_certificates(tmp_path / "tls", ["127.0.0.1", "learn.example"], authority=tmp_path / "authority")
    return tmp_path / "tls"


def test_days_are_whole_and_negative_when_it_is_over() -> None:
    assert [count_days(10 * DAY, 10 * DAY - s) for s in (2 * DAY, 1.5 * DAY, 1.0, 0.0, -1.0, -DAY)] == [
        2,
        1,
        0,
        0,
        -1,
        -1,
    ]


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (31.5, []),
        (30.5, ["the server's certificate expires in 30 days; renew it with: fedveca deploy renew DIR"]),
        (1.5, ["the server's certificate expires in 1 day; renew it with: fedveca deploy renew DIR"]),
        (-0.5, ["the server's certificate expired 1 day ago: nodes reject the server; " + RENEW]),
    ],
)
def test_a_warning_from_30_days_before(left: float, said: list[str], tls: Path) -> None:
    assert list(list_expiry_warnings(tls, read_expiry(tls / "server.pem") - left * DAY)) == said


def test_the_authoritys_end_is_warned_of_too(tls: Path) -> None:
    later = read_expiry(tls / "ca.pem") - 5.5 * DAY
    assert list(list_expiry_warnings(tls, later))[1].startswith(
        "the authority's certificate expires in 5 days; renew it"
    )
    assert read_expiry(tls / "ca.pem") - time.time() > 3600 * DAY > 9 * (read_expiry(tls / "server.pem") - time.time())


def test_renewal_keeps_the_key_the_names_and_the_authority(tls: Path) -> None:
    write_certificates(tls, ["127.0.0.1", "learn.example"], days=3, authority=tls.parent / "authority")
    before = {name: (tls / name).read_bytes() for name in ("ca.pem", "server.pem", "server.key")}
    assert not renew_certificate(tls, tls.parent / "authority")
    assert (tls / "server.key").read_bytes() == before["server.key"]
    assert (tls / "ca.pem").read_bytes() == before["ca.pem"]
    assert count_days(read_expiry(tls / "server.pem"), time.time()) == 364
    for host in ("127.0.0.1", "learn.example"):
        assert shake_hands(before["ca.pem"], tls, host)
    assert not shake_hands(before["ca.pem"], tls, "other.example")


def test_a_new_authority_is_accepted_with_the_new_file_before_and_after(tls: Path) -> None:
    old, old_server = (tls / "ca.pem").read_bytes(), (tls / "server.pem").read_bytes()
    key = (tls / "server.key").read_bytes()
    assert renew_certificate(tls, tls.parent / "authority", new_authority=True)
    new = (tls / "ca.pem").read_bytes()
    assert (tls / "server.key").read_bytes() == key
    assert not shake_hands(old, tls)
    assert shake_hands(new, tls)
    renewed = (tls / "server.pem").read_bytes()
    (tls / "server.pem").write_bytes(old_server)  # the server was not restarted yet
    assert shake_hands(new, tls)
    (tls / "server.pem").write_bytes(renewed)
    renew_certificate(tls, tls.parent / "authority")  # with the new authority's key
    assert shake_hands(new, tls)
    renew_certificate(tls, tls.parent / "authority", new_authority=True)
    assert len(read_certificates(tls / "ca.pem")) == 2  # the one before the last is gone
    assert (tls.parent / "authority" / "ca.key").stat().st_mode & 0o777 == 0o600


def test_what_renewal_cannot_do_is_said(tls: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"other/ca.key cannot be read .* or replace the authority"):
        renew_certificate(tls, tmp_path / "other")
    write_certificates(tmp_path / "another", ["127.0.0.1"], authority=tmp_path / "other")
    with pytest.raises(UserError, match=r"ca.key is not the key of .*ca.pem"):
        renew_certificate(tls, tmp_path / "other")
    with pytest.raises(UserError, match=r"the authority's certificate expires on .* replace it"):
        renew_certificate(tls, tmp_path / "authority", days=4000)
    with pytest.raises(UserError, match="does not hold a server's certificates"):
        renew_certificate(tmp_path / "nowhere", tmp_path / "authority")
    (tls / "ca.pem").write_text("not a certificate")
    with pytest.raises(UserError, match=r"ca\.pem cannot be read"):
        read_expiry(tls / "ca.pem")


def test_renew_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = tmp_path / "kit"
    assert main(["deploy", "init", str(kit), "--nodes", "2", "model=svm"]) == 0
    keys = {p: p.read_bytes() for p in [*kit.rglob("key"), kit / "server" / "tls" / "server.key"]}
    capsys.readouterr()
    assert main(["deploy", "renew", str(kit)]) == 0
    assert "copy" not in capsys.readouterr().out
    assert main(["deploy", "renew", str(kit), "--new-ca"]) == 0
    out = capsys.readouterr().out
    assert [line.strip() for line in out.splitlines() if line.startswith("  ")] == [
        str(kit / f"node-{i}" / "ca.pem") for i in range(2)
    ]
    for i in range(2):
        assert shake_hands((kit / f"node-{i}" / "ca.pem").read_bytes(), kit / "server" / "tls")
    assert {p: p.read_bytes() for p in keys} == keys
    assert main(["deploy", "renew", str(tmp_path)]) == 2
    assert "is not the folder of a deployment" in capsys.readouterr().err
