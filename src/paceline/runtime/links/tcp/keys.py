"""Keys of a run: an authority of its own, and certificates for its machines.

    FOLDER/
      ca.pem ca.key            the authority; its key stays where it was made, for machines that come later
      node/                    for any machine: copy this folder to each
        ca.pem cert.pem key.pem
      HOST/                    or, with --hosts, a folder for each of them: a key that is stolen from one machine
        ca.pem cert.pem key.pem hosts.txt              cannot answer in the place of another

`tls.MutualTls` uses them and needs no package for that.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.errors import SecurityError, UsageError
from paceline.runtime.links.tcp.tls import ANY_NAME, ANY_NODE, CA, CERTIFICATE, HOSTS, KEY

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_KEY = "ca.key"
ALLOWANCE = datetime.timedelta(days=1)  # by which the clocks of machines may differ


class _Authority(NamedTuple):
    """What signs the certificates of a run."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


def make_keys(folder: Path, hosts: Sequence[str] = (), days: int = 365) -> list[Path]:
    """Make an authority, unless the folder has one, and a certificate for each host or for any.

    Returns the folders to be copied, one for each machine, or one for all.

    Raises:
        UsageError: the package `cryptography` is missing, or keys would be replaced.
    """
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError("making keys needs the package cryptography: `pip install 'paceline[tls]'`") from error
    names = [_checked(host) for host in hosts] or [ANY_NODE]
    folders = [folder / name for name in names]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in folders:
            if each.exists():
                raise UsageError(f"{each} exists: its keys may be in use. Remove it, or name another folder")
        authority = _open(folder, bool(hosts)) if (folder / CA_KEY).exists() else _found(folder, days)
        for each in folders:
            _issue(authority, each, each.name if hosts else None, days)
        if hosts:
            with (folder / HOSTS).open("a", encoding="utf-8") as listed:
                listed.writelines(f"{name}\n" for name in names)
    except OSError as error:
        raise UsageError(f"keys cannot be written to {folder} ({error.strerror}); name another folder") from error
    return folders


def _checked(host: str) -> str:
    """Return the name of a host, which becomes that of a folder."""
    host = host.strip()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:_-]*", host) or host in (CA, CA_KEY, HOSTS, ANY_NODE):
        raise UsageError(f"{host!r} is no name or address of a host; give them as in --hosts node1,10.0.0.2")
    return host


def _found(folder: Path, days: int) -> _Authority:
    """Make an authority, and write it down."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"paceline run {os.urandom(4).hex()}")
    builder = _builder(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    authority = _Authority(_signed(builder, key), key)
    _write(folder / CA_KEY, _pem_of_key(key), 0o600)
    _write(folder / CA, _pem(authority.certificate), 0o644)
    return authority


def _open(folder: Path, by_name: bool) -> _Authority:
    """Read an authority that was made before; `by_name` if it is to make a certificate for a host."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if by_name != (folder / HOSTS).exists():
        earlier, now = ("with", "without") if by_name is False else ("without", "with")
        raise UsageError(
            f"{folder} was made {earlier} --hosts, so {now} them no one could connect; name another folder"
        )
    try:
        key = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise SecurityError(f"the authority in {folder} cannot be read ({error}); make keys in a new folder") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise SecurityError(f"the authority in {folder} is none of `paceline keys`; make keys in a new folder")
    return _Authority(certificate, key)


def _issue(authority: _Authority, folder: Path, host: str | None, days: int) -> None:
    """Write the certificate of a machine, or of any, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(host or ANY_NAME), authority.certificate.subject, key, days)
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName([_subject(host or ANY_NAME)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    builder = builder.add_extension(identifier, critical=False)
    folder.mkdir(mode=0o700)
    _write(folder / KEY, _pem_of_key(key), 0o600)
    _write(folder / CERTIFICATE, _pem(_signed(builder, authority.key)), 0o644)
    _write(folder / CA, _pem(authority.certificate), 0o644)
    if host is not None:
        _write(folder / HOSTS, f"{host}\n".encode(), 0o644)


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - ALLOWANCE).not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _subject(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(signs: bool) -> x509.KeyUsage:
    """What a key is for: to sign certificates, or to prove who one is."""
    from cryptography import x509

    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(names, False),
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write a new file, which has its mode from the beginning."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(content)
