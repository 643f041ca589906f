"""Parts of shared memory lie apart, poison between them, so that the sanitizer of addresses knows where each ends.

Every process of a child that `sanitized.in_child` starts imports this before anything else.
"""

from __future__ import annotations

import ctypes

from paceline.runtime.links import memory

poison = ctypes.CDLL(None)["__asan_poison_memory_region"]
poison.argtypes, poison.restype = [ctypes.c_void_p, ctypes.c_size_t], None
_lines, _take = memory.lines, memory.Memory.take


def lines(size: int) -> int:
    """Whole cache lines, and one that nobody uses."""
    return _lines(size) + memory.LINE


def take(self: memory.Memory, size: int) -> memoryview:
    part = _take(self, size)
    if size:
        start = ctypes.addressof(ctypes.c_char.from_buffer(part))
        poison(start + size, min(lines(size), self.size - self._taken + lines(size)) - size)
    return part


memory.lines, memory.Memory.take = lines, take  # type: ignore[method-assign]
