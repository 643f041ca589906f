"""TLS 1.3 between machines: the keys and certificates of a run, and connections whose ends both show one."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shlex
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from select import POLLIN, POLLOUT
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import PeerRefused, SecurityError, UsageError
from paceline.runtime.links.tcp.stream import BUFFERS, undelivered

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from paceline.runtime.links.tcp.stream import Stream


CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
#: Lists the hosts that certificates are made out to, if they are: then a host may only answer by its own name.
HOSTS = "hosts.txt"
#: The folder of the certificate that any machine may use, and the name in it.
ANY_NODE, ANY_NAME = "node", "node.paceline"
RECORD = 1 << 14  # bytes that TLS encrypts at once


class MutualTls:
    """The credentials of a run that has keys: without a certificate of the run's own authority no one gets in."""

    token = None
    locked = True

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: what `paceline keys` has made; or the part of it that was copied to this machine.

        Raises:
            SecurityError: files are missing or not valid, or others can read the key.
        """
        self.folder = _folder_of_this_machine(folder)
        _require_private(self.folder / KEY)
        #: The names in this machine's certificate; none if any machine may use it.
        self._own = (self.folder / HOSTS).read_text(encoding="utf-8").split() if (self.folder / HOSTS).exists() else []
        self._dials, self._listens = self._context(ssl.PROTOCOL_TLS_CLIENT), self._context(ssl.PROTOCOL_TLS_SERVER)
        self._dials.check_hostname = False  # `_require_host` does, since processes announce addresses and not names

    def stream(self, raw: socket.socket, listens: bool, host: str) -> Stream:
        if listens:
            return TlsStream(self._listens.wrap_socket(raw, server_side=True, do_handshake_on_connect=False))
        name = host if self._own else ANY_NAME
        wrapped = self._dials.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False)
        return TlsStream(wrapped, partial(_require_host, name, self._own))

    def __reduce__(self) -> tuple[type[MutualTls], tuple[Path]]:
        """Another process of this machine opens the same folder."""
        return MutualTls, (self.folder,)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED  # of both ends
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no connection is resumed
        try:
            context.load_verify_locations(self.folder / CA)
            context.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
        except (OSError, ssl.SSLError) as error:
            raise SecurityError(
                f"the keys in {self.folder} cannot be used ({error.strerror or error}); `paceline keys` makes new ones"
            ) from error
        return context


class TlsStream:
    """An encrypted socket. OpenSSL bears one thread at a time, so receiving and sending share a lock."""

    short_is_all = False  # a record is returned at a time

    def __init__(self, raw: ssl.SSLSocket, check: Callable[[Mapping[str, Any]], None] = lambda shown: None) -> None:
        """`check` is given the certificate that the other end has shown; it may raise PeerRefused."""
        self._raw, self._check, self._lock = raw, check, threading.Lock()

    def fileno(self) -> int:
        return self._raw.fileno()

    def handshake(self) -> int | None:
        try:
            self._raw.do_handshake()
        except ssl.SSLWantReadError:
            return POLLIN
        except ssl.SSLWantWriteError:
            return POLLOUT
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or error
            raise PeerRefused(f"does not come to terms about TLS: {why}. Do both have keys of this run?") from error
        self._check(self._raw.getpeercert() or {})
        return None

    def send(self, buffers: Sequence[memoryview]) -> int | None:
        try:
            with self._lock:
                return self._raw.send(_first_record(buffers))
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return None

    def receive(self, into: memoryview) -> int | None:
        try:
            with self._lock:
                return self._raw.recv_into(into)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def wake_at(self, count: int) -> None:
        """Do nothing: what the socket has received is decrypted record by record."""

    def undelivered(self) -> int:
        return undelivered(self._raw)

    def finish(self) -> None:
        socket.socket.shutdown(self._raw, socket.SHUT_WR)  # that of SSLSocket would end reading too

    def close(self) -> None:
        self._raw.close()


def _first_record(buffers: Sequence[memoryview]) -> bytes | memoryview:
    """What to encrypt first: a header goes into one record with the beginning of its body."""
    first = buffers[0]
    if len(buffers) == 1 or len(first) >= RECORD:
        return first
    parts, room = [], RECORD
    for view in buffers[:BUFFERS]:
        parts.append(view[:room])
        room -= len(parts[-1])
        if not room:
            break
    return b"".join(parts)


def _require_host(host: str, local_names: Sequence[str], shown: Mapping[str, Any]) -> None:
    """Raise PeerRefused if a certificate is made out to another host than the one that was dialled.

    A host that was dialled by its address may show a name by which this machine finds that address, or this machine's
    own, which may find itself elsewhere.
    """
    canonical = _canonical(host)
    names = [_canonical(name) for _, name in shown.get("subjectAltName", ())]
    if canonical in names:
        return
    mine = {_canonical(name) for name in local_names}
    if _is_address(canonical) and any(name in mine or canonical in _addresses_of(name) for name in names):
        return
    raise PeerRefused(
        f"does not come to terms about TLS: it shows the key of {', '.join(names)}, and this machine does not know it "
        f"as {host}. Let all machines find each other by the names in --hosts, or make keys without --hosts"
    )


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _canonical(host: str) -> str:
    """Return a host as it is compared: certificates write addresses in other ways."""
    without_zone = host.partition("%")[0]
    return str(ipaddress.ip_address(without_zone)) if _is_address(without_zone) else host.casefold()


def _addresses_of(name: str) -> set[str]:
    """Return the addresses by which this machine finds a host."""
    try:
        return {_canonical(str(entry[4][0])) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


def _folder_of_this_machine(folder: Path) -> Path:
    candidates = [folder, folder / socket.gethostname(), folder / ANY_NODE]
    for candidate in candidates:
        if (candidate / CERTIFICATE).exists():
            return candidate
    raise SecurityError(
        f"there is no {CERTIFICATE} in {', '.join(map(str, candidates))}; make keys with "
        f"`paceline keys {shlex.quote(str(folder))}`, and copy the folder in it that is this machine's"
    )


def _require_private(key: Path) -> None:
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
    except OSError as error:
        raise SecurityError(f"{key} cannot be read ({error.strerror}); copy it with its certificate") from error
    if mode & 0o077:
        raise SecurityError(
            f"other users of this machine may read or change {key} (mode {mode:03o}); run `chmod 600 {key}`, and make "
            "new keys if anyone may have read it"
        )


if TYPE_CHECKING:
    _stream: type[Stream] = TlsStream


# Keys of a run: an authority of its own, and certificates for its machines.
#
#     FOLDER/
#       ca.pem ca.key            the authority; its key stays where it was made, for machines that come later
#       node/                    for any machine: copy this folder to each
#         ca.pem cert.pem key.pem
#       HOST/                    or, with --hosts, a folder for each of them: a key that is stolen from one machine
#         ca.pem cert.pem key.pem hosts.txt              cannot answer in the place of another
#
# `tls.MutualTls` uses them and needs no package for that.

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
