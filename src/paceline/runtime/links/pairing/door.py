"""The door of a run: where other machines prove that they know the code on the screen, and are let in.

Strangers may knock, too. Each connection is one guess at most. A code that was guessed at five times gives way to one
of four words, which no number of guesses finds. A machine that was refused is looked at again only after a while, which
doubles each time. So who knocks without end neither gets in nor keeps others out (docs/internals/pairing.md).
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import ConnectionFailed, SecurityError
from paceline.runtime.links.pairing.code import GUESSES, Code, Codes
from paceline.runtime.links.pairing.discovery import Announcement
from paceline.runtime.links.pairing.exchange import Line, WrongCode, package, verify
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.tls import CERTIFICATE, KEY

KNOCK = 5.0  # seconds in which a machine has to prove that it knows the code
SPACING = 0.1  # seconds between two machines that are looked at
#: Seconds in which a machine that was refused is not looked at again; the first refusals are free.
FREE, FIRST_PAUSE, LONGEST_PAUSE = 2, 0.25, 32.0
HURRY = 0.0005  # seconds after one that is not looked at
PLACES = 16  # machines that are looked at, at a time
REMEMBERED = 1 << 14  # machines that were refused
STAY = 600.0  # seconds that a machine may take from then on: a person is asked there

#: Talks to a machine that knows the code; returns the name of the machine if it has joined.
Receive = Callable[[Line, str], str]


@dataclass
class RefusalCounts:
    """How often machines were refused, and until when each is not looked at; times are handed in. Threads share it."""

    counts: Counter[str] = field(default_factory=Counter)
    until: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, now: float, host: str) -> float:
        """Return for how many seconds a machine is not looked at."""
        with self._lock:
            return max(0.0, self.until.get(host, now) - now)

    def add(self, now: float, host: str) -> None:
        """Take note that a machine was refused."""
        with self._lock:
            self.counts[host] += 1
            pause = FIRST_PAUSE * 2.0 ** (self.counts[host] - FREE - 1) if self.counts[host] > FREE else 0.0
            self.until.pop(host, None)
            self.until[host] = now + min(pause, LONGEST_PAUSE)
            if len(self.until) > REMEMBERED:
                oldest = next(iter(self.until))
                del self.until[oldest], self.counts[oldest]

    def forget(self, host: str) -> None:
        """Take note that a machine was let in."""
        with self._lock:
            self.counts.pop(host, None)
            self.until.pop(host, None)


class Door:
    """Lets machines in, each in a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        keys: Path,
        receive: Receive,
        report: Callable[[str], None],
        hosts: Sequence[str] = (),
    ) -> None:
        """
        Args:
            listener: where machines knock; the door's from now on.
            keys: the folder of this machine's certificate.
            receive: what to do with a machine that is let in.
            report: called with what the person at this machine should read.
            hosts: addresses of this machine whose networks are told where to knock.
        """
        package()
        self._listener, self._receive, self._report = listener, receive, report
        #: Where machines knock.
        self.address = Address(*listener.getsockname()[:2])
        self._certificate = ssl.PEM_cert_to_DER_cert((keys / CERTIFICATE).read_text(encoding="ascii"))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version, self._tls.num_tickets = ssl.TLSVersion.TLSv1_3, 0
        self._tls.load_cert_chain(keys / CERTIFICATE, keys / KEY)
        self.codes = Codes()
        self._refused = RefusalCounts()
        #: The connections that are looked at, one of a machine, the oldest first; used with `_refused` under the lock.
        self._visitors: dict[str, ssl.SSLSocket] = {}
        self._lock = threading.Lock()
        self._announcement = Announcement(hosts, self.address.port)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-door", daemon=True)

    @property
    def code(self) -> Code:
        """The code with which the next machine joins."""
        return self.codes.current

    def open(self) -> None:
        self._announcement.open()
        self._announcement.announce(self.code.number)
        self._thread.start()

    def close(self) -> None:
        """Let no machine in any longer."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        self._listener.close()
        if self._thread.ident is not None:
            self._thread.join(KNOCK)
        with self._lock:
            for tls in self._visitors.values():
                _end(tls)
        self._announcement.close()

    def _run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            try:
                raw, where = self._listener.accept()
            except OSError:
                return
            tls, pause = self._admitted(raw, str(where[0])), HURRY
            if tls is not None:
                pause = SPACING
                thread = threading.Thread(
                    target=self._serve, args=(tls, str(where[0])), name="paceline-door", daemon=True
                )
                thread.start()

    def _admitted(self, raw: socket.socket, host: str) -> ssl.SSLSocket | None:
        """Return the connection to a machine that is looked at; None if it is not.

        A machine competes with itself; of too many machines, the oldest gives way.
        """
        with self._lock:
            if self._refused.wait(time.monotonic(), host):
                raw.close()
                return None
            try:
                raw.settimeout(KNOCK)
                tls = self._tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it is gone already
                raw.close()
                return None
            if (before := self._visitors.pop(host, None)) is not None:
                _end(before)
            elif len(self._visitors) >= PLACES:
                _end(self._visitors.pop(next(iter(self._visitors))))
            self._visitors[host] = tls
            return tls

    def _serve(self, tls: ssl.SSLSocket, host: str) -> None:
        """Let a machine in if it knows a code, and talk to it then. Runs in a thread."""
        line, knows = Line(tls, host, KNOCK), False
        try:
            tls.do_handshake()
            verify(line, self.codes, self._certificate, host)
            knows = True
        except (OSError, ValueError, ConnectionFailed) as error:  # a guess, no machine that pairs, or one that went
            tls.close()
            if isinstance(error, WrongCode):
                self._warn_of_guess(host)
        finally:
            with self._lock:
                if self._visitors.get(host) is tls:
                    del self._visitors[host]
                self._refused.forget(host) if knows else self._refused.add(time.monotonic(), host)
        if knows:
            self._talk(tls, line, host)

    def _talk(self, tls: ssl.SSLSocket, line: Line, host: str) -> None:
        """Let a machine join; it uses the code up only then."""
        name = ""
        try:
            with closing(tls):
                line.allow(STAY)
                name = self._receive(line, host)
        except (ConnectionFailed, ValueError, TypeError) as error:  # it is gone, or says what makes no sense
            self._report(f"a machine did not join: {error}")
        finally:
            self.codes.release(bool(name))
        if name and not self._closed.is_set():
            self._announcement.announce(self.code.number)
            self._report(f"{name} has joined; the next machine: paceline join {self.code}")

    def _warn_of_guess(self, host: str) -> None:
        wrong = self.codes.wrong
        if wrong < GUESSES:
            self._report(f"a machine at {host} gave a wrong code ({wrong} of {GUESSES} before it is replaced)")
        elif wrong == GUESSES:
            self._announcement.announce(self.code.number)
            self._report(
                f"a machine at {host} gave a wrong code, the {GUESSES}th: from now on codes are longer, and cannot be "
                f"guessed. The next machine: paceline join {self.code}"
            )


def _end(tls: ssl.SSLSocket) -> None:
    """End a connection that another thread reads."""
    with suppress(OSError):
        socket.socket.shutdown(tls, socket.SHUT_RDWR)  # that of SSLSocket would change what the thread uses


def listen_anywhere(address: Address) -> socket.socket:
    """Return a socket at which machines can knock, at this port, or at any where it is taken.

    Raises:
        SecurityError: this machine does not have the address.
    """
    for port in (address.port, 0):
        with suppress(OSError):
            return socket.create_server((address.host, port), backlog=64)
    raise SecurityError(f"this machine cannot listen at {address.host}: give --address one of its own addresses")
