"""Certificates of a federation over time: made once, renewed, and never expired silently.

`server/tls` holds what the server needs: `ca.pem`, `server.pem` and `server.key`. The authority's own key, `ca.key`, is
stored elsewhere, and needed only to renew the server's certificate. While one authority replaces another, `ca.pem`
holds both certificates, the new one first, so that a node accepts the server before and after its restart.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.deploy.provision import write_secret
from fedveca.errors import UserError
from fedveca.runs.files import OBJECT_BYTES, read_inside, write_atomic

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_KEY = "ca.key"
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
WARNING_DAYS = 30
_AUTHORITY = "fedveca federation"


def write_certificates(folder: Path, hosts: list[str], days: int = SERVER_DAYS, authority: Path | None = None) -> None:
    """Writes ca.pem, server.pem and server.key into `folder`.

    Args:
        folder: the server's folder of certificates.
        hosts: names and addresses of the server.
        days: how long the server's certificate is valid; the authority's is valid for at least ten years.
        authority: the folder to store the authority's key in, which renews the server's certificate; without it that
            key is not stored.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    write_secret(folder / "server.key", _encode_key(key))
    _write_authority(folder, hosts, days, authority, key, [])


def renew_certificate(folder: Path, authority: Path, new_authority: bool = False, days: int = SERVER_DAYS) -> bool:
    """Gives the server a new certificate, for its old key and its old names.

    Args:
        folder: the server's folder of certificates.
        authority: the folder that holds the authority's key.
        new_authority: whether to replace the authority as well.
        days: how long the certificate is valid.

    Returns:
        Whether the authority was replaced, so that every node needs the new ca.pem.

    Raises:
        UserError: if a file is missing or invalid, or if the authority ends before the certificate would.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        former = read_certificates(folder / "ca.pem")
        server = read_certificates(folder / "server.pem")[0]
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = serialization.load_pem_private_key(read_inside(folder, "server.key", OBJECT_BYTES), None)
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise UserError(f"{folder} does not hold a server's certificates: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{folder / 'server.key'} is not a key of an elliptic curve")
    hosts = [str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]
    if new_authority:
        now = datetime.datetime.now(datetime.UTC)
        still = [each for each in former if each.not_valid_after_utc > now]
        _write_authority(folder, hosts, days, authority, key, still[:1])  # nodes know the last one
        return True
    try:
        signer = serialization.load_pem_private_key(read_inside(authority, AUTHORITY_KEY, OBJECT_BYTES), None)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{authority / AUTHORITY_KEY} cannot be read ({error}); put it there, or replace the authority"
        ) from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != former[0].public_key():
        raise UserError(f"{authority / AUTHORITY_KEY} is not the key of {folder / 'ca.pem'}")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    if former[0].not_valid_after_utc < until:
        day = former[0].not_valid_after_utc.date()
        raise UserError(f"the authority's certificate expires on {day}, before a new certificate would; replace it")
    _write_server(folder, hosts, days, key, signer)
    return False


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates of a file, at least one; UserError where there are none."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(read_inside(path.parent, path.name, OBJECT_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def read_expiry(path: Path) -> float:
    """When the first certificate of a file expires, in seconds since 1970; UserError where it cannot be read."""
    return read_certificates(path)[0].not_valid_after_utc.timestamp()


def count_days(expiry: float, now: float) -> int:
    """Whole days that are left until then; negative where it is over."""
    return int((expiry - now) // 86400)


def list_expiry_warnings(folder: Path, now: float) -> Iterator[str]:
    """One sentence for each certificate of a server that expires within 30 days, or has expired.

    Args:
        folder: the server's folder of certificates.
        now: seconds since 1970.
    """
    for name, what in (("server.pem", "the server's certificate"), ("ca.pem", "the authority's certificate")):
        days = count_days(read_expiry(folder / name), now)
        how = "fedveca deploy renew DIR" + (" --new-ca" if name == "ca.pem" else "")
        if days < 0:
            yield f"{what} expired {-days} day{'s' * (days != -1)} ago: nodes reject the server; renew it with: {how}"
        elif days <= WARNING_DAYS:
            yield f"{what} expires in {days} day{'s' * (days != 1)}; renew it with: {how}"


def _write_authority(
    folder: Path,
    hosts: list[str],
    days: int,
    store: Path | None,
    key: ec.EllipticCurvePrivateKey,
    former: list[x509.Certificate],
) -> None:
    """A new authority's certificate, its key where there is a place for it, and the server's certificate."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    signer = ec.generate_private_key(ec.SECP256R1())
    lasts = max(AUTHORITY_DAYS, days)
    certificate = _make_certificate(_AUTHORITY, signer.public_key(), signer, lasts, None)
    pem = serialization.Encoding.PEM
    write_atomic(folder / "ca.pem", b"".join(each.public_bytes(pem) for each in (certificate, *former)))
    if store is not None:
        write_secret(store / AUTHORITY_KEY, _encode_key(signer))
    _write_server(folder, hosts, days, key, signer)


def _write_server(
    folder: Path, hosts: list[str], days: int, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate = _make_certificate(hosts[0], key.public_key(), signer, days, hosts)
    write_atomic(folder / "server.pem", certificate.public_bytes(serialization.Encoding.PEM))


def _make_certificate(
    name: str,
    owner: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: list[str] | None,
) -> x509.Certificate:
    """A server's certificate for these hosts, or the authority's own where there are none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now, is_authority = datetime.datetime.now(datetime.UTC), hosts is None
    draft = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(owner)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(owner), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
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
    if hosts is not None:
        draft = draft.add_extension(x509.SubjectAlternativeName([_name_host(host) for host in hosts]), critical=False)
        draft = draft.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return draft.sign(signer, hashes.SHA256())


def _name_host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
