"""Memory of another process, read while it runs: nothing is stopped. It needs the right to trace the process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_ELF64, _DYNSYM, _LOAD, _SHARED_OBJECT = b"\x7fELF\x02\x01", 11, 1, 3


class Mapping(NamedTuple):
    """One line of /proc/PID/maps."""

    begin: int
    end: int
    rights: str
    offset: int
    file: str  # "device:inode"
    path: str


def mappings(pid: int) -> Iterator[Mapping]:
    """Iterate over the mapped memory of a process; nothing where that may not be read."""
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8") as lines:
        for line in lines:
            span, rights, offset, device, inode, *path = line.split(None, 5)
            begin, end = span.split("-")
            where = path[0].strip() if path else ""
            yield Mapping(int(begin, 16), int(end, 16), rights, int(offset, 16), f"{device}:{inode}", where)


class ProcessMemory:
    """The memory of one process. What cannot be read raises OSError; what is torn reads as it is."""

    def __init__(self, pid: int) -> None:
        # One descriptor for all reads: the right to trace is asked for when it is opened, and not again.
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        """Return bytes at an address."""
        # What is read of a running program may be no pointer at all; `pread` takes no negative offset.
        if not 0 < address < 1 << 63:
            raise OSError("no address")
        data = os.pread(self._file, size, address)
        if len(data) < size:
            raise OSError("not mapped")
        return data

    def word(self, address: int) -> int:
        """Return the pointer or unsigned 64-bit number at an address."""
        return int(struct.unpack("=Q", self.read(address, 8))[0])

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return neighbouring pointers."""
        return struct.unpack(f"={count}Q", self.read(address, 8 * count))

    def integer(self, address: int) -> int:
        """Return the signed 32-bit number at an address."""
        return int(struct.unpack("=i", self.read(address, 4))[0])

    def text(self, address: int, limit: int = 128) -> str:
        """Return the C string at an address, cut at a page's end."""
        size = min(limit, 4096 - address % 4096)
        return self.read(address, size).partition(b"\0")[0].decode(errors="replace")


def peek(pid: int, address: int, size: int) -> bytes:
    """Return some memory of a process; empty where it may not be read or nothing is mapped."""
    with suppress(OSError):
        memory = ProcessMemory(pid)
        try:
            return memory.read(address, size)
        finally:
            memory.close()
    return b""


def symbol(file: str, name: str) -> tuple[int, bool] | None:
    """Return the address of a dynamic symbol of an ELF file, and whether it is relative to where the file is loaded."""
    with suppress(OSError, struct.error), open(file, "rb") as elf:
        header = elf.read(64)
        if header[:6] != _ELF64:
            return None
        (kind,) = struct.unpack_from("=H", header, 16)
        (sections_at,) = struct.unpack_from("=Q", header, 40)
        size, count = struct.unpack_from("=HH", header, 58)
        elf.seek(sections_at)
        table = elf.read(size * count)
        sections = [struct.unpack_from("=IIQQQQIIQQ", table, size * at) for at in range(count)]
        for section in sections:
            if section[1] == _DYNSYM:
                elf.seek(section[4])
                symbols = elf.read(section[5])
                names_at, names_size = sections[section[6]][4:6]
                elf.seek(names_at)
                value = _value(symbols, elf.read(names_size), name.encode())
                # A program that is linked at a fixed address has absolute symbols.
                return None if value is None else (value, kind == _SHARED_OBJECT)
    return None


def _value(symbols: bytes, names: bytes, symbol: bytes) -> int | None:
    at = names.find(b"\0" + symbol + b"\0") + 1
    if not at:
        return None
    return next((value for name, _, _, _, value, _ in struct.iter_unpack("=IBBHQQ", symbols) if name == at), None)
