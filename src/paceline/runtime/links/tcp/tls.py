"""TLS 1.3 between machines: both ends show a certificate that was made for this run."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from select import POLLIN, POLLOUT
from typing import TYPE_CHECKING, Any

from paceline.errors import PeerRefused, SecurityError
from paceline.runtime.links.tcp.stream import BUFFERS, undelivered

if TYPE_CHECKING:
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
