"""Parts of shared memory lie apart, poison between them, so that the sanitizer of addresses knows where each ends.

Every process of a child that `sanitized.in_child` starts imports this before anything else.
"""

from __future__ import annotations

import ctypes
import weakref

from paceline.runtime.links import memory

poison, heal = (ctypes.CDLL(None)[f"__asan_{word}_memory_region"] for word in ("poison", "unpoison"))
for each in (poison, heal):
    each.argtypes, each.restype = [ctypes.c_void_p, ctypes.c_size_t], None
_lines, _take, _map = memory.lines, memory.Memory.take, memory.Memory._map


def lines(size: int) -> int:
    """Whole cache lines, and one that nobody uses."""
    return _lines(size) + memory.LINE


def mapped(self: memory.Memory) -> None:
    """Map it, and let what lies there when it is gone have no poison."""
    _map(self)
    start = ctypes.addressof(ctypes.c_char.from_buffer(self.raw))
    weakref.finalize(self.raw.obj, heal, start, self.size)


def take(self: memory.Memory, size: int) -> memoryview:
    part = _take(self, size)
    if size:
        start = ctypes.addressof(ctypes.c_char.from_buffer(part))
        poison(start + size, min(lines(size), self.size - self._taken + lines(size)) - size)
    return part


memory.lines, memory.Memory.take, memory.Memory._map = lines, take, mapped  # type: ignore[method-assign]
