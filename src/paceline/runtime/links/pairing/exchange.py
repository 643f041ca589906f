"""The exchange by which two machines prove that they know the same code, without saying it (SPAKE2).

machine that joins                           machine that trains
------------------                           -------------------
TLS, with any machine ---------------------> shows the certificate of the run
the number of the code, SPAKE2 of side A --> is there such a code?
                       <-------------------- SPAKE2 of side B
a proof that it has the key ---------------> is it right? If not, that was a guess
                       <-------------------- a proof that it has the key, too

The certificate that each end has seen is part of the exchange: with a machine between them that shows another one, the
two ends have different keys, and the first proof is wrong. So what follows on the connection is between these two
alone. Who joins proves first: a stranger learns nothing from an exchange that it does not finish.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from paceline.errors import PeerLost, PeerRefused, UsageError
from paceline.runtime.links.pairing.code import Code, Codes, Verdict
from paceline.runtime.links.pairing.line import Line

JOINS, TRAINS = b"paceline join", b"paceline train --open"
VERSION = 1


#: What the machine that joins says at these verdicts.
REASONS: dict[int, str] = {
    Verdict.WRONG: "the code is wrong: look at the other screen again",
    Verdict.NO_NUMBER: "it has no code with this number: look at its screen for the newest one",
    Verdict.USED_UP: "a machine has joined with this code, which is for one machine: its screen shows the next one",
    Verdict.BUSY: "another machine is about to join with this code; wait for it, or for the next code on the screen",
    Verdict.WITHDRAWN: "wrong words were given for this code too often: its screen shows a longer one",
}


def package() -> Any:
    """Return the module spake2.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import spake2
    except ModuleNotFoundError as error:
        raise UsageError("joining by a code needs the package spake2: `pip install 'paceline[pair]'`") from error
    return spake2


def prove(line: Line, code: Code, certificate: bytes, name: str) -> None:
    """Prove to a machine that trains that this one knows its code, and have it prove the same.

    Args:
        line: the connection.
        code: what a person has typed here.
        certificate: what the other end has shown.
        name: what messages call it.

    Raises:
        PeerRefused: the code is wrong or used up, or the other end does not know it.
    """
    side = package().SPAKE2_A(code.words.encode(), idA=JOINS, idB=sha256(certificate).digest())
    line.send_json({"version": VERSION, "number": code.number})
    line.send(side.start())
    _require_right(line, name)
    key = _key(side, line.receive(), name)
    line.send(_proof(key, JOINS))
    _require_right(line, name)
    if not hmac.compare_digest(line.receive(), _proof(key, TRAINS)):
        raise PeerRefused(f"{name} does not know the code: it is not the machine that printed it")


def verify(line: Line, codes: Codes, certificate: bytes, name: str) -> Code:
    """Return the code that a machine that joins knows.

    Args:
        line: the connection.
        codes: decides which code is good.
        certificate: what this machine has shown.
        name: what messages call the other end.

    Raises:
        PeerRefused: it knows none of them; WrongCode where it has guessed.
    """
    number = _number(line.receive_json())
    message = line.receive()
    verdict, code = codes.look_up(number)
    line.send(bytes([verdict]))
    if code is None:
        raise PeerRefused(f"{name} gave code {number}-...: {verdict.name.lower().replace('_', ' ')}")
    side = package().SPAKE2_B(code.words.encode(), idA=JOINS, idB=sha256(certificate).digest())
    line.send(side.start())
    key = _key(side, message, name)
    verdict = codes.judge(code, hmac.compare_digest(line.receive(), _proof(key, JOINS)))
    if verdict is not Verdict.RIGHT:
        line.send(bytes([verdict]))
        raise (WrongCode if verdict is Verdict.WRONG else PeerRefused)(f"{name} gave a wrong code")
    try:
        line.send(bytes([verdict]))
        line.send(_proof(key, TRAINS))
    except PeerLost:
        codes.settle(joined=False)
        raise
    return code


class WrongCode(PeerRefused):
    """A machine has guessed a code, wrongly."""


def _number(hello: Mapping[str, Any]) -> int:
    if hello.get("version") != VERSION or not isinstance(hello.get("number"), int):
        raise PeerRefused("it speaks another protocol: install the same version of Paceline on both machines")
    return int(hello["number"])


def _require_right(line: Line, name: str) -> None:
    (number,) = line.receive(1) or b"\xff"
    if number == Verdict.RIGHT:
        return
    reason = REASONS.get(number, "it speaks another protocol")
    raise PeerRefused(f"{name} did not let this machine in: {reason}")


def _key(side: Any, message: bytes, name: str) -> bytes:
    try:
        key: bytes = side.finish(message)
    except Exception as error:  # spake2 has a dozen, of three base classes
        raise PeerRefused(f"{name} sent no message of SPAKE2") from error
    return key


def _proof(key: bytes, of: bytes) -> bytes:
    return hmac.new(key, of, sha256).digest()
