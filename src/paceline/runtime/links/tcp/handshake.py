"""The handshake: who is at the other end, and whether both belong to the same run. Nothing here touches a socket.

Where the stream itself authenticates peers (loopback, TLS), both ends say who they are:

    dialler                                      listener
    -------                                      --------
    HELLO who, run, job -----------------------> 1 is it this run and this job?
    2 is it this run and this job? <------------ WELCOME who, run, job

With a token each also proves that it knows it, the dialler first, so that an unauthenticated peer learns nothing:

    HELLO who, run, job, nonce ----------------> 1
    2 <----------------------------------------- CHALLENGE nonce
    PROOF mac("dialler", all of that) ---------> 3 is it right?
    4 is it right? <---------------------------- WELCOME who, run, job, mac("listener", all of that)

Both nonces are part of either proof, so what was recorded once proves nothing later, and a proof of one side is none of
the other. They are part of two keys, too, one for each direction: every later frame has a MAC (`seal`). An
unauthenticated peer does not learn what was wrong: the connection is closed.
"""

from __future__ import annotations

import hmac
from collections.abc import Generator
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from paceline.errors import PeerRefused
from paceline.runtime.links.tcp.frame import CHALLENGE, HELLO, PROOF, VERSION, WELCOME, Frame, FrameKeys, Limits

RUN_BYTES, JOB_BYTES, NONCE_BYTES, MAC_BYTES = 16, 32, 32, 32
#: What an unauthenticated peer may send.
UNPROVED = Limits(ints=3, body=RUN_BYTES + JOB_BYTES + NONCE_BYTES, queue=4096)
DIALLER, LISTENER = b"dialler", b"listener"
ROLES = 256


class Peer(NamedTuple):
    """A process of a run. One that takes the place of another has the same role and number, and a later incarnation."""

    role: int
    number: int
    incarnation: int = 0


class Identity(NamedTuple):
    """Who a process is, and of which run."""

    peer: Peer
    run: bytes  # 16 random bytes that all processes of the run were given
    job: bytes  # SHA-256 of what they train and how, so that no two train different things together


class Message(NamedTuple):
    """A frame to be sent."""

    kind: int
    ints: tuple[int, ...]
    body: bytes


class Accepted(NamedTuple):
    """The end of a handshake: who the peer is, and what has still to be sent to it."""

    peer: Peer
    last: Message | None
    #: The keys of all frames after `last`; None where the stream itself authenticates them.
    keys: FrameKeys | None = None


#: Yields what to send (None: nothing yet), is sent the frame that arrives next, and returns who the peer is.
Handshake: TypeAlias = "Generator[Message | None, Frame, Accepted]"


def dialling(me: Identity, token: bytes | None, nonce: bytes) -> Handshake:
    """The side of the process that has opened the connection; `nonce` is random."""
    about = me.run + me.job
    if token is None:
        answer = yield Message(HELLO, me.peer, about)
        return Accepted(_welcomed(me, answer, b""), None)
    answer = yield Message(HELLO, me.peer, about + nonce)
    _expect(answer, CHALLENGE, 0, NONCE_BYTES)
    both = nonce + bytes(answer.body)
    answer = yield Message(PROOF, (), _mac(token, DIALLER, me, me.peer, both))
    peer = _welcomed(me, answer, token, both)
    to_listener, to_dialler = _keys(token, me, me.peer, peer, both)
    return Accepted(peer, None, FrameKeys(to_listener, to_dialler))


def listening(me: Identity, token: bytes | None, nonce: bytes) -> Handshake:
    """The side of the process that was dialled."""
    hello = yield None
    about = me.run + me.job
    if token is None:
        _expect(hello, HELLO, 3, len(about))
        return Accepted(_same_run(me, hello), Message(WELCOME, me.peer, about))
    _expect(hello, HELLO, 3, len(about) + NONCE_BYTES)
    peer, both = _same_run(me, hello), bytes(hello.body[len(about) :]) + nonce
    proof = yield Message(CHALLENGE, (), nonce)
    _expect(proof, PROOF, 0, MAC_BYTES)
    if not hmac.compare_digest(proof.body, _mac(token, DIALLER, me, peer, both)):
        raise PeerRefused("does not know the token of this run")
    to_listener, to_dialler = _keys(token, me, peer, me.peer, both)
    last = Message(WELCOME, me.peer, about + _mac(token, LISTENER, me, me.peer, both))
    return Accepted(peer, last, FrameKeys(to_dialler, to_listener))


def _welcomed(me: Identity, answer: Frame, token: bytes, nonces: bytes = b"") -> Peer:
    """Return who has answered, after checking that it belongs to the run."""
    about = RUN_BYTES + JOB_BYTES
    _expect(answer, WELCOME, 3, about + (MAC_BYTES if token else 0))
    peer = _same_run(me, answer)
    if token and not hmac.compare_digest(answer.body[about:], _mac(token, LISTENER, me, peer, nonces)):
        raise PeerRefused("does not know the token of this run")
    return peer


def _expect(frame: Frame, kind: int, ints: int, size: int) -> None:
    if (frame.kind, len(frame.ints), len(frame.body)) != (kind, ints, size):
        raise PeerRefused(
            f"sent frame {frame.kind} of {len(frame.ints)} integers and {len(frame.body)} bytes where {kind} of {ints} "
            f"and {size} was due: it is no process of this run, or was started with another kind of security"
        )


def _same_run(me: Identity, frame: Frame) -> Peer:
    run, job = frame.body[:RUN_BYTES], frame.body[RUN_BYTES : RUN_BYTES + JOB_BYTES]
    if not hmac.compare_digest(run, me.run):
        raise PeerRefused("belongs to another run")
    if not hmac.compare_digest(job, me.job):
        raise PeerRefused(
            "trains another job, or with other options: start all processes with the same command and the same files"
        )
    peer = Peer(*frame.ints)
    if not 0 <= peer.role < ROLES or peer.number < 0 or peer.incarnation < 0:
        raise PeerRefused(f"calls itself {tuple(peer)}, which is no process of a run")
    return peer


def _mac(token: bytes, side: bytes, me: Identity, peer: Peer, nonces: bytes) -> bytes:
    """The proof that `side`, which calls itself `peer`, knows the token. All parts have a fixed length."""
    peer_bytes = b"%d %d %d" % peer
    parts = (b"paceline", bytes([VERSION]), side, me.run, me.job, nonces, peer_bytes)
    return hmac.new(token, b"|".join(parts), sha256).digest()


def _keys(token: bytes, me: Identity, dialler: Peer, listener: Peer, nonces: bytes) -> tuple[bytes, bytes]:
    """Return the keys of the frames that the dialler sends, and of those that the listener sends."""
    ends = (b"%d %d %d" % dialler, b"%d %d %d" % listener)
    parts = (b"paceline frames", bytes([VERSION]), me.run, me.job, nonces, *ends)
    to_listener, to_dialler = (hmac.new(token, b"|".join((side, *parts)), sha256) for side in (DIALLER, LISTENER))
    return to_listener.digest(), to_dialler.digest()
