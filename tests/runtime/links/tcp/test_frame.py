"""Frames arrive as they were sent, however they are cut; what is no frame is refused before memory is reserved."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from paceline.errors import FrameError, ProtocolError
from paceline.runtime.links.tcp.frame import (
    HEADER,
    MAGIC,
    NUMBERS,
    STAGE,
    VERSION,
    Decoder,
    Encoder,
    Frame,
    Limits,
    Seal,
)

SENT = [
    (16, (), b""),
    (17, (1, -2, 2**63 - 1, -(2**63)), b"abc"),
    (255, tuple(range(3000)), bytes(range(256)) * 40),
    (0, (5,), bytes(STAGE)),
    (18, (), bytes(range(100)) * 1000),
]


def encoded(frames: list[tuple[int, tuple[int, ...], bytes]], key: bytes | None = None) -> bytes:
    encoder = Encoder()
    encoder.seal = None if key is None else Seal(key)
    return b"".join(encoder.head(kind, ints, len(body), [memoryview(body)]) + body for kind, ints, body in frames)


def decoded(decoder: Decoder, received: bytes, most: int) -> list[Frame]:
    """Feed bytes, at most so many at a time."""
    frames: list[Frame] = []
    rest = memoryview(received)
    while True:
        while (frame := decoder.next()) is not None:
            frames.append(frame)
        if not rest:
            return frames
        target = decoder.target()
        count = min(len(target), most, len(rest))
        assert count
        target[:count] = rest[:count]
        decoder.fed(count)
        rest = rest[count:]


def header(kind: int = 16, ints: int = 0, number: int = 0, size: int = 0) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, ints, number, size)


@pytest.mark.parametrize("key", [None, b"of one direction"])
@pytest.mark.parametrize("most", [1, 7, 23, 4096, 10**9])
def test_frames_arrive_as_they_were_sent_however_they_are_cut(most: int, key: bytes | None) -> None:
    decoder = Decoder()
    decoder.seal = None if key is None else Seal(key)
    got = decoded(decoder, encoded(SENT, key), most)
    assert [(frame.kind, frame.ints, bytes(frame.body)) for frame in got] == SENT


def test_a_stream_that_ends_at_any_byte_gives_the_frames_before_it() -> None:
    frames = [(16, (1, 2), b"abcde"), (17, (), b""), (18, (3,), b"xyz")]
    whole = encoded(frames)
    ends = [len(encoded(frames[: count + 1])) for count in range(3)]
    for end in range(len(whole) + 1):
        decoder = Decoder()
        got = decoded(decoder, whole[:end], 10**9)
        assert len(got) == sum(each <= end for each in ends)
        assert decoder.between_frames == (end in [0, *ends])


def test_a_body_is_received_where_its_place_is() -> None:
    place = bytearray(300_000)
    asked = []

    def where(kind: int, ints: tuple[int, ...], size: int) -> memoryview | None:
        asked.append((kind, ints, size))
        return memoryview(place)[ints[0] : ints[0] + size] if ints else None

    body = random.Random(0).randbytes(200_000)
    first, second = decoded(Decoder(place=where), encoded([(16, (50_000,), body), (17, (), b"own")]), 65_536)
    assert first.body.obj is place
    assert place[50_000:250_000] == body
    assert (bytes(second.body), second.body.obj is place) == (b"own", False)
    assert asked == [(16, (50_000,), 200_000), (17, (), 3)]


def test_a_place_of_another_size_is_a_bug() -> None:
    with pytest.raises(ProtocolError, match="10 bytes were named for a body of 4"):
        decoded(Decoder(place=lambda *_: memoryview(bytearray(10))), encoded([(16, (), b"abcd")]), 100)


def test_nothing_of_the_next_frame_is_interpreted_early() -> None:
    """So that whoever takes one frame can say where the body of the next one belongs."""
    asked: list[int] = []
    decoder = Decoder(place=lambda kind, *_: asked.append(kind))
    received = encoded([(16, (), b"a"), (17, (), b"b")])
    decoder.target()[: len(received)] = received
    decoder.fed(len(received))
    assert decoder.next() is not None
    assert asked == [16]


@pytest.mark.parametrize(
    ("received", "part", "says"),
    [
        (b"\r\n", "magic", "no frame of Paceline"),
        (b"GET / HTTP/1.1\r\nHost: a", "magic", "begins with b'GET / HT'"),
        (header().replace(MAGIC, b"Paceline"), "magic", "no frame of Paceline"),
        (
            HEADER.pack(MAGIC, VERSION + 1, 16, 0, 0, 0),
            "version",
            f"speaks version {VERSION + 1} .* this one {VERSION}",
        ),
        (header(number=1), "number", "number 1 where 0 was due"),
        (header(number=NUMBERS - 1), "number", "where 0 was due"),
        (header(ints=9), "integers", "announces a frame of 9 integers, where 8 are allowed"),
        (header(size=101), "body", "announces a body of 101 bytes, where 100 are allowed"),
        (header(size=10**12), "body", "a body of 1000000000000 bytes"),
    ],
)
def test_what_is_no_allowed_frame_is_refused_by_its_header(received: bytes, part: str, says: str) -> None:
    tracemalloc.start()
    with pytest.raises(FrameError, match=says) as refused:
        decoded(Decoder(Limits(ints=8, body=100)), received, 10**9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.part == part
    assert peak < 200_000  # a terabyte was announced, and none of it was reserved


def test_a_frame_that_is_sent_again_is_refused() -> None:
    once = encoded([(16, (1,), b"push")])
    decoder = Decoder()
    assert len(decoded(decoder, once, 1000)) == 1
    with pytest.raises(FrameError, match="number 0 where 1 was due"):
        decoded(decoder, once, 1000)


def test_numbers_wrap() -> None:
    encoder, decoder = Encoder(), Decoder()
    encoder._number = decoder._number = NUMBERS - 1
    received = encoder.head(16, (), 0) + encoder.head(17, (), 0)
    assert [frame.kind for frame in decoded(decoder, received, 1000)] == [16, 17]


def test_a_frame_beyond_the_limits_is_not_sent_either() -> None:
    encoder = Encoder(Limits(ints=2, body=10))
    with pytest.raises(FrameError, match="about to send a frame of 3 integers"):
        encoder.head(16, (1, 2, 3), 0)
    with pytest.raises(FrameError, match="about to send a body of 11 bytes"):
        encoder.head(16, (), 11)
    with pytest.raises(struct.error):
        encoder.head(256, (), 0)
    assert encoder.head(16, (), 10) == header(size=10)  # its number was not used up


def test_random_bytes_never_give_a_frame_and_raise_nothing_else() -> None:
    chance = random.Random(18)
    for _ in range(2000):
        received = bytearray(encoded([(16, (1, 2, 3), b"body")]))
        for _ in range(chance.randint(1, 4)):
            received[chance.randrange(HEADER.size)] ^= 1 << chance.randrange(8)
        try:
            got = decoded(Decoder(Limits(ints=8, body=100)), bytes(received), 10**9)
        except FrameError:
            continue
        for frame in got:  # what flips the kind, or makes a part shorter, is still a frame
            assert len(frame.ints) <= 8
            assert len(frame.body) <= 100


def test_every_byte_of_a_sealed_frame_counts_and_no_memory_is_reserved_for_one_that_was_changed() -> None:
    frames = [(16, (1, -2), b"a body"), (17, (), b"")]
    whole, places, second = encoded(frames, b"key"), [], len(encoded(frames[:1], b"key"))
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 128
        decoder = Decoder(place=lambda kind, ints, size: places.append((kind, ints, size)))
        decoder.seal = Seal(b"key")
        try:
            got = decoded(decoder, bytes(changed), 10**9)
        except FrameError:
            continue
        assert len(got) < 2
        assert at - (at >= second) * second in (10, 11)  # more integers are announced than have come, within the limits
    assert set(places) == {(16, (1, -2), 6)}
