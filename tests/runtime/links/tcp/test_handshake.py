"""Two ends learn who the other is, and a stranger gets nowhere, whatever it sends, repeats or reflects."""

from __future__ import annotations

import random

import pytest

from paceline.errors import PeerRefused
from paceline.runtime.links.tcp.frame import CHALLENGE, HELLO, PROOF, WELCOME, Frame
from paceline.runtime.links.tcp.handshake import Accepted, Handshake, Identity, Message, Peer, dialling, listening

RUN, JOB, TOKEN = bytes(range(16)), bytes(range(32)), b"a token that none can guess"
ME, OTHER = Identity(Peer(2, 5, 1), RUN, JOB), Identity(Peer(1, 0, 3), RUN, JOB)
NONCES = (b"d" * 32, b"l" * 32)


def as_frame(message: Message) -> Frame:
    return Frame(message.kind, message.ints, memoryview(message.body))


def step(side: Handshake, message: Message) -> Message | Accepted | None:
    """Give one message to a side; what it says, or the end."""
    try:
        return side.send(as_frame(message))
    except StopIteration as end:
        accepted: Accepted = end.value
        return accepted


def sides(dials: bytes | None, listens: bytes | None, other: Identity = OTHER) -> tuple[Handshake, Handshake, Message]:
    dialler, listener = dialling(ME, dials, NONCES[0]), listening(other, listens, NONCES[1])
    hello = next(dialler)
    assert next(listener) is None
    assert hello is not None
    return dialler, listener, hello


def spoken(token: bytes | None) -> tuple[list[Message], Accepted, Accepted]:
    """A whole handshake: all messages in turn, and what each side has learnt."""
    dialler, listener, message = sides(token, token)
    said, turn, learnt = [message], (listener, dialler), []
    for number in range(4):
        answer = step(turn[number % 2], said[-1])
        if isinstance(answer, Accepted):
            learnt.append(answer)
            answer = answer.last
        if answer is None:
            break
        said.append(answer)
    return said, learnt[1], learnt[0]


@pytest.mark.parametrize(("token", "kinds"), [(None, [HELLO, WELCOME]), (TOKEN, [HELLO, CHALLENGE, PROOF, WELCOME])])
def test_both_sides_learn_who_the_other_is(token: bytes | None, kinds: list[int]) -> None:
    said, dialler, listener = spoken(token)
    assert [message.kind for message in said] == kinds
    assert (dialler.peer, listener.peer) == (OTHER.peer, ME.peer)
    assert not any(token in message.body for message in said) if token else True


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    ("other", "says"),
    [
        (OTHER._replace(run=bytes(16)), "belongs to another run"),
        (OTHER._replace(job=bytes(32)), "trains another job"),
    ],
)
def test_another_run_or_job_is_refused(token: bytes | None, other: Identity, says: str) -> None:
    _, listener, hello = sides(token, token, other)
    with pytest.raises(PeerRefused, match=says):
        step(listener, hello)


@pytest.mark.parametrize(("dials", "listens"), [(b"another token, also long", TOKEN), (None, TOKEN), (TOKEN, None)])
def test_another_kind_of_security_or_a_wrong_token_is_refused(dials: bytes | None, listens: bytes | None) -> None:
    dialler, listener, hello = sides(dials, listens)
    with pytest.raises(PeerRefused):  # noqa: PT012 (which of the two steps refuses depends on the case)
        challenge = step(listener, hello)
        assert isinstance(challenge, Message)
        proof = step(dialler, challenge)
        assert isinstance(proof, Message)
        step(listener, proof)


def test_a_listener_that_does_not_know_the_token_is_refused() -> None:
    said, _, _ = spoken(TOKEN)
    for body in (said[3].body[:48] + bytes(32), said[3].body[:48], said[3].body[:48] + said[2].body):
        dialler, _, _ = sides(TOKEN, TOKEN)
        step(dialler, said[1])
        with pytest.raises(PeerRefused):
            step(dialler, said[3]._replace(body=body))


def test_a_recorded_handshake_proves_nothing_later() -> None:
    said, _, _ = spoken(TOKEN)
    listener = listening(OTHER, TOKEN, b"x" * 32)
    next(listener)
    step(listener, said[0])
    with pytest.raises(PeerRefused, match="does not know the token"):
        step(listener, said[2])
    dialler = dialling(ME, TOKEN, b"y" * 32)
    next(dialler)
    step(dialler, said[1])
    with pytest.raises(PeerRefused, match="does not know the token"):
        step(dialler, said[3])


def test_who_is_proved_cannot_be_changed_on_the_way() -> None:
    said, _, _ = spoken(TOKEN)
    _, listener, hello = sides(TOKEN, TOKEN)
    step(listener, hello._replace(ints=(2, 6, 1)))
    with pytest.raises(PeerRefused):
        step(listener, said[2])


@pytest.mark.parametrize("ints", [(256, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1), (2**62, 2**62, 2**62)])
def test_an_impossible_peer_is_refused(ints: tuple[int, int, int]) -> None:
    _, listener, hello = sides(None, None)
    with pytest.raises(PeerRefused, match="no process of a run"):
        step(listener, hello._replace(ints=ints))


@pytest.mark.parametrize("token", [None, TOKEN])
def test_no_changed_message_is_accepted(token: bytes | None) -> None:
    """Every message of the dialler, with one bit changed, one byte less or one integer less."""
    chance = random.Random(18)
    said, _, _ = spoken(token)
    for number in range(0, len(said) - 1, 2):
        for _ in range(300):
            bad = changed(said[number], chance)
            if token is None and bad._replace(ints=said[0].ints) == said[0]:
                continue  # without a token it may call itself what it likes
            listener = listening(OTHER, token, NONCES[1])
            next(listener)
            assert not accepts(
                listener, [*(said[before] for before in range(0, number, 2)), bad, *said[number + 2 :: 2]]
            )


def changed(message: Message, chance: random.Random) -> Message:
    body, ints = bytearray(message.body), list(message.ints)
    match chance.randrange(5):
        case 0:
            return message._replace(kind=(message.kind + chance.randint(1, 200)) % 256)
        case 1:
            return message._replace(body=bytes(body[:-1]))
        case 2 if ints:
            return message._replace(ints=tuple(ints[:-1]))
        case 3 if ints:
            ints[chance.randrange(3)] += 1
            return message._replace(ints=tuple(ints))
    body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return message._replace(body=bytes(body))


def accepts(listener: Handshake, messages: list[Message]) -> bool:
    try:
        return any(isinstance(step(listener, message), Accepted) for message in messages)
    except PeerRefused:
        return False
