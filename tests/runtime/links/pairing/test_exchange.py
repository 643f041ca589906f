"""Two machines that know a code are let in, and no one else: who guesses, records, repeats or stands between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from paceline.errors import ConnectionFailed, FrameError, PeerLost, PeerRefused, UsageError
from paceline.runtime.links.pairing.code import GUESSES, LONG, NUMBERS, WORDS, Code, Codes, Verdict, make_code
from paceline.runtime.links.pairing.exchange import Line, WrongCode, prove, verify

pytest.importorskip("spake2")

CODE, OTHER = Code(7, "lantern-osprey"), Code(7, "lantern-otter")
CERTIFICATE = b"certificate"


@contextmanager
def lines(seconds: float = 20.0) -> Iterator[tuple[Line, Line]]:
    """The two ends of a connection."""
    a, b = socket.socketpair()
    with a, b:
        yield Line(a, "alice", seconds), Line(b, "bob", seconds)


def codes_with(code: Code) -> Codes:
    codes = Codes()
    codes.current = code
    return codes


def met(typed: Code, shown: Code = CODE, seen: bytes = CERTIFICATE, has: bytes = CERTIFICATE) -> list[Any]:
    """Let one end prove `typed` and the other verify `shown`; return what each came to."""
    outcome: list[Any] = [None, None]

    def joins(line: Line) -> None:
        try:
            prove(line, typed, seen, "alice")
        except ConnectionFailed as error:
            outcome[0] = error

    with lines() as (to_alice, to_bob):
        thread = threading.Thread(target=joins, args=(to_alice,))
        thread.start()
        try:
            outcome[1] = verify(to_bob, codes_with(shown), has, "bob")
        except ConnectionFailed as error:
            outcome[1] = error
        thread.join(20)
    return outcome


def test_who_knows_the_code_is_let_in() -> None:
    assert met(CODE) == [None, CODE]


def test_a_wrong_word_is_a_guess_and_both_ends_say_so() -> None:
    joins, trains = met(OTHER)
    assert type(trains) is WrongCode
    assert "the code is wrong" in str(joins)


def test_a_number_without_a_code_is_no_guess() -> None:
    joins, trains = met(Code(8, CODE.words))
    assert type(trains) is PeerRefused
    assert "no code with this number" in str(joins)


def test_a_machine_between_the_two_shows_another_certificate_and_is_refused() -> None:
    joins, trains = met(CODE, seen=b"that of a machine between them")
    assert type(trains) is WrongCode
    assert isinstance(joins, PeerRefused)


def test_what_was_recorded_of_a_pairing_is_worth_nothing() -> None:
    """The same bytes again, as an attacker has them who could even look into TLS."""
    sent: list[bytes] = []

    class Recorder(Line):
        def send(self, content: bytes | memoryview) -> None:
            sent.append(bytes(content))
            super().send(content)

    with lines() as (to_alice, to_bob):
        to_alice.__class__ = Recorder
        thread = threading.Thread(target=verify, args=(to_bob, codes_with(CODE), CERTIFICATE, "bob"))
        thread.start()
        prove(to_alice, CODE, CERTIFICATE, "alice")
        thread.join(20)
    with lines() as (to_alice, to_bob):
        for message in sent:
            to_alice.send(message)
        with pytest.raises(WrongCode):
            verify(to_bob, codes_with(CODE), CERTIFICATE, "bob")


NO_MESSAGES = [b"", b"A", b"A" + bytes(32), b"B" + b"\xff" * 32, b"A" + b"\xff" * 32, b"x" * 5000]
NO_HELLOS = [b"[]", b"{", b"{}", b'{"version": 2, "number": 7}', b'{"version": 1, "number": "7"}']


@pytest.mark.parametrize("message", NO_MESSAGES)
def test_what_is_no_message_of_the_exchange_is_refused(message: bytes) -> None:
    with lines() as (stranger, to_bob):
        stranger.send_json({"version": 1, "number": 7})
        stranger.send(message)
        with pytest.raises(PeerRefused):
            verify(to_bob, codes_with(CODE), CERTIFICATE, "bob")


@pytest.mark.parametrize("content", NO_HELLOS)
def test_what_speaks_another_protocol_is_refused(content: bytes) -> None:
    with lines() as (stranger, to_bob):
        stranger.send(content)
        stranger.send(b"A")
        with pytest.raises((PeerRefused, FrameError)):
            verify(to_bob, codes_with(CODE), CERTIFICATE, "bob")


def test_a_line_ends_at_its_deadline_and_takes_no_more_than_allowed() -> None:
    with lines(0.05) as (_, to_bob), pytest.raises(PeerLost, match="bob does not answer"):
        to_bob.receive()
    with lines() as (stranger, to_bob):
        stranger.send(bytes(100))
        with pytest.raises(FrameError, match="100 bytes at once, and at most 99"):
            to_bob.receive(99)


def test_codes_are_read_as_people_type_them() -> None:
    assert Code.parse(" 7 Lantern osprey\n") == Code.parse("7-lantern-osprey") == CODE
    assert str(CODE) == "7-lantern-osprey"
    made = make_code(range(1, 99))
    assert made == Code.parse(str(made))
    assert (long := make_code((), LONG)) == Code.parse(str(long).replace("-", " "))
    assert made.number == 99, "numbers in use are not given again"
    assert make_code(NUMBERS).number in NUMBERS
    assert len(set(WORDS)) == len(WORDS) >= 500


def test_a_code_bears_five_guesses_also_where_many_machines_guess_at_once() -> None:
    codes = Codes()
    code, first = codes.current, codes.verdict(codes.current.number)
    assert first == (Verdict.RIGHT, code)
    assert [codes.judge(code, right=False) for _ in range(GUESSES)] == [Verdict.WRONG] * GUESSES
    assert codes.judge(code, right=True) is Verdict.WITHDRAWN, "it had begun before, and comes too late"
    assert codes.verdict(code.number) == (Verdict.WITHDRAWN, None)
    long = codes.current
    assert long.words.count("-") == LONG - 1
    for _ in range(1000):
        assert codes.judge(long, right=False) is Verdict.WRONG
    assert codes.judge(long, right=True) is Verdict.RIGHT, "no number of guesses keeps others out"
    codes.release(joined=True)
    assert codes.current.words.count("-") == LONG - 1


def test_of_two_machines_that_know_a_code_one_is_let_in() -> None:
    codes = Codes()
    code = codes.current
    assert codes.judge(code, right=True) is Verdict.RIGHT
    assert codes.judge(code, right=True) is Verdict.BUSY
    assert codes.verdict(code.number) == (Verdict.BUSY, None)
    codes.release(joined=False)
    assert codes.verdict(code.number) == (Verdict.RIGHT, code)


def test_a_machine_that_goes_before_it_is_answered_leaves_the_code_good() -> None:
    class Cut(Line):
        def send(self, content: bytes | memoryview) -> None:
            if bytes(content) == bytes([Verdict.RIGHT]) and codes.verdict(CODE.number)[0] is Verdict.BUSY:
                raise PeerLost("bob", "takes no more")
            super().send(content)

    def joins() -> None:
        with suppress(PeerLost):
            prove(to_alice, CODE, CERTIFICATE, "alice")

    codes = codes_with(CODE)
    with lines(2.0) as (to_alice, to_bob):
        to_bob.__class__ = Cut
        thread = threading.Thread(target=joins)
        thread.start()
        with pytest.raises(PeerLost):
            verify(to_bob, codes, CERTIFICATE, "bob")
        to_bob._raw.close()
        thread.join(20)
    assert codes.verdict(CODE.number) == (Verdict.RIGHT, CODE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a number and 2 or 4 words"),
        ("7-lantern", "a number and 2 or 4 words"),
        ("0-lantern-osprey", "a number and 2 or 4 words"),
        ("alice:29471", "a number and 2 or 4 words"),
        ("7-lantern-ospray", "no code has the word 'ospray'"),
    ],
)
def test_what_is_no_code_is_refused_before_anything_is_sent(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Code.parse(text)
