"""The door of a run: where other machines prove that they know the code on the screen, and are let in.

One connection is looked at after another, each for a few seconds and with a pause after one that was refused: who
knocks without end costs the run a few milliseconds each second, and at most keeps others from being heard. A wrong
proof is a guess. After GUESSES of them the door is closed for good: of 250,000 codes that is one chance in 50,000.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from paceline.errors import ConnectionFailed, SecurityError
from paceline.runtime.links.pairing.code import Code, make_code
from paceline.runtime.links.pairing.discovery import Announcement
from paceline.runtime.links.pairing.exchange import Verdict, WrongCode, package, verify
from paceline.runtime.links.pairing.line import Line
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.tls import CERTIFICATE, KEY

GUESSES = 5
KNOCK = 5.0  # seconds in which a machine has to prove that it knows the code
PAUSE = 0.5  # seconds after a machine that was refused
STAY = 600.0  # seconds that a machine may take from then on: a person is asked there

#: Talks to a machine that knows the code; returns the name of the machine if it has joined.
Receive = Callable[[Line, str], str]


class Door:
    """Lets machines in, each in a thread of its own once it has proved that it knows a code."""

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
        self._lock = threading.Lock()
        #: Codes by their numbers: those that may be used, those in use, and who has used the others.
        self._free: dict[int, Code] = {}
        self._busy: dict[int, Code] = {}
        self._used: dict[int, str] = {}
        self._wrong = 0
        self._announcement = Announcement(hosts, self.address.port)
        self._closed = threading.Event()
        self._next_code()
        self._thread = threading.Thread(target=self._run, name="paceline-door", daemon=True)

    @property
    def code(self) -> Code:
        """The code with which the next machine joins."""
        return next(iter(self._free.values()))

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let no machine in any longer."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        self._listener.close()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(KNOCK)
        self._announcement.close()

    def _run(self) -> None:
        self._announcement.tell(self.code.number)
        while not self._closed.is_set():
            try:
                raw, where = self._listener.accept()
            except OSError:
                return
            if not self._let_in(raw, str(where[0])) and not self._closed.is_set():
                self._closed.wait(PAUSE)

    def _let_in(self, raw: socket.socket, host: str) -> bool:
        """Return whether a machine knows a code; then a thread talks to it."""
        tls = raw
        try:
            raw.settimeout(KNOCK)
            tls = self._tls.wrap_socket(raw, server_side=True)
            line = Line(tls, host, KNOCK)
            code = verify(line, self._verdict, self._certificate, host)
        except (OSError, ConnectionFailed) as error:  # a guess, no machine that pairs, or one that went
            tls.close()
            if isinstance(error, WrongCode):
                self._count_guess(host)
            return False
        with self._lock:
            self._busy[code.number] = self._free.pop(code.number)
        threading.Thread(target=self._talk, args=(tls, line, code, host), name="paceline-door", daemon=True).start()
        return True

    def _talk(self, tls: socket.socket, line: Line, code: Code, host: str) -> None:
        """Let a machine join; it uses the code up only then."""
        name = ""
        try:
            with closing(tls):
                line.allow(STAY)
                name = self._receive(line, host)
        except (ConnectionFailed, ValueError, TypeError) as error:  # it is gone, or says what makes no sense
            self._report(f"a machine did not join: {error}")
        finally:
            self._settle(code, name)

    def _settle(self, code: Code, name: str) -> None:
        """Make the next code if a machine has joined with this one; else let this one be used again."""
        with self._lock:
            self._busy.pop(code.number, None)
            if name:
                self._used[code.number] = name
                self._next_code()
            else:
                self._free[code.number] = code
        if name and not self._closed.is_set():
            self._announcement.tell(self.code.number)
            self._report(f"{name} has joined; the next machine: paceline join {self.code}")

    def _next_code(self) -> None:
        code = make_code({*self._used, *self._busy})
        self._used.pop(code.number, None)
        self._free[code.number] = code

    def _verdict(self, number: int) -> tuple[Verdict, Code | None]:
        with self._lock:
            if number in self._free:
                return Verdict.RIGHT, self._free[number]
            known = Verdict.USED_UP if number in self._used else Verdict.NO_NUMBER
            return Verdict.BUSY if number in self._busy else known, None

    def _count_guess(self, host: str) -> None:
        self._wrong += 1
        if self._wrong < GUESSES:
            self._report(
                f"a machine at {host} gave a wrong code ({self._wrong} of {GUESSES} before the door is closed)"
            )
            return
        self.close()
        self._report(
            f"a machine at {host} gave a wrong code, the {GUESSES}th: no machine can join this run any longer. The run "
            "goes on, with the machines that have joined"
        )


def listen_anywhere(address: Address) -> socket.socket:
    """Return a socket at which machines can knock, at this port, or at any where it is taken.

    Raises:
        SecurityError: this machine does not have the address.
    """
    for port in (address.port, 0):
        with suppress(OSError):
            return socket.create_server((address.host, port), backlog=16)
    raise SecurityError(f"this machine cannot listen at {address.host}: give --address one of its own addresses")
