"""Event files for TensorBoard, written without TensorBoard.

A file is a sequence of records, each with one Event message of TensorFlow's event.proto:

    record      length (8 bytes) | its masked CRC-32C | the message | its masked CRC-32C        (little endian)
    Event       1: wall time (double)   2: step (varint)   3: "brain.Event:2" in the first one   5: Summary
    Summary     1: Value, repeated      Value   1: tag   2: the number (float)

Both formats have not changed since 2015, and this file contains all that is used of them; a library would bring its own
protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.names import file_name
from paceline.runtime.report.curves import every_curve, staleness_curve
from paceline.runtime.report.reading import Reading

Scalar = tuple[str, int, float, float]  # tag, step, value, seconds since the run's start
POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed


def write_events(readings: Sequence[Reading], output: Path) -> list[Path]:
    """Write a folder per run, for `tensorboard --logdir OUTPUT`."""
    written = []
    for reading in readings:
        folder = output / file_name(reading.name)
        folder.mkdir(parents=True, exist_ok=True)
        start = reading.started
        file = folder / f"events.out.tfevents.{int(start):010d}.paceline"
        file.write_bytes(events(sorted(scalars(reading), key=lambda s: (s[3], s[1])), start))
        written.append(file)
    return written


def scalars(reading: Reading) -> Iterator[Scalar]:
    """All values of a run's curves."""
    for tag, curve in every_curve(reading).items():
        for update, value, seconds in zip(
            *(c.tolist() for c in (curve.updates, curve.values, curve.seconds)), strict=True
        ):
            yield tag, round(update), value, seconds
    seconds, stale = staleness_curve(reading.trace)
    if not stale.any():  # synchronous plans have none
        return
    for push, (value, at) in enumerate(zip(stale.tolist(), seconds.tolist(), strict=True)):
        yield "staleness", push + 1, value, at


def events(points: Sequence[Scalar], start: float, head: bool = True) -> bytes:
    """The content of an event file, or without its head what is appended to one."""
    parts = [_record(_double(1, start) + _bytes(3, b"brain.Event:2"))] if head else []
    for tag, step, value, seconds in points:
        scalar = _bytes(1, tag.encode(errors="backslashreplace")) + _key(2, 5) + struct.pack("<f", value)
        parts.append(_record(_double(1, start + seconds) + _key(2, 0) + _varint(step) + _bytes(5, _bytes(1, scalar))))
    return b"".join(parts)


def _record(message: bytes) -> bytes:
    """One TFRecord."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc(length)) + message + struct.pack("<I", masked_crc(message))


def _key(field: int, how: int) -> bytes:
    return _varint(field << 3 | how)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _table() -> list[int]:
    """The table of the byte-wise CRC."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ POLYNOMIAL * (byte & 1)
        table.append(byte)
    return table


CRC = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset as in TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
