"""A visit at the door of a run: this machine proves that it knows the code, and then talks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager

from paceline.errors import MachineError
from paceline.runtime.links.pairing.code import Code
from paceline.runtime.links.pairing.exchange import package, prove
from paceline.runtime.links.pairing.line import Line
from paceline.runtime.links.tcp.address import Address

REACH = 10.0  # seconds in which a machine has to accept a connection, and to prove that it knows the code


@contextmanager
def visit(door: Address, code: Code, source: str = "") -> Iterator[tuple[Line, str]]:
    """Yield the connection to the machine that has printed the code, and the address by which this machine reaches it.

    `source` is the address of this machine to go from, if it matters.

    Raises:
        UsageError: spake2 is not installed.
        MachineError: the other machine cannot be reached.
        PeerRefused: it does not let this one in, or does not know the code.
        PeerLost: it does not answer.
    """
    package()
    raw = _connected(door, source)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # `prove` says whose certificate it is
    try:
        tls = context.wrap_socket(raw)
    except OSError as error:
        raw.close()
        raise MachineError(
            f"what listens at {door} is no run of `paceline train --open`, or wrong codes came from this machine, which "
            f"it does not look at for up to half a minute then: {error}"
        ) from error
    with closing(tls):
        line = Line(tls, str(door), REACH)
        prove(line, code, tls.getpeercert(binary_form=True) or b"", str(door))
        yield line, str(tls.getpeername()[0])


def _connected(door: Address, source: str) -> socket.socket:
    try:
        return socket.create_connection(door, REACH, (source, 0))
    except TimeoutError as error:
        raise MachineError(
            f"{door} does not answer within {REACH:g} s: a firewall on that machine drops what arrives (open port "
            f"{door.port} for TCP there), or the two machines are in different networks. `paceline doctor --to "
            f"{door.host}` looks closer"
        ) from error
    except ConnectionRefusedError as error:
        raise MachineError(
            f"nothing listens at {door}: the run has ended, it lets no machine in any longer, or the port is another; "
            "look at the other screen"
        ) from error
    except OSError as error:
        raise MachineError(
            f"{door} cannot be reached: {error.strerror or error}; give another address that the other screen shows"
        ) from error
