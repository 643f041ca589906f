"""Sleeping on an integer in shared memory until somebody rings: the kernel's futex, which needs no descriptor."""

from __future__ import annotations

import ctypes
import os
import time

# The C library has no function for it. The call releases the GIL.
SYSCALL = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
WAIT, WAKE, EVERYBODY = 0, 1, 2**31 - 1
_call = ctypes.CDLL(None).syscall
SHORT_NAP = 100e-6  # on a machine whose number for it we do not know


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def sleep(address: int, seen: int, seconds: float) -> None:
    """Sleep until rung, but not if the integer has changed from what was `seen`."""
    if SYSCALL is None:
        time.sleep(SHORT_NAP)
        return
    limit = Timespec(int(seconds), int(seconds % 1 * 1e9))
    seen_word = ctypes.c_uint32(seen & 0xFFFFFFFF)
    _call(SYSCALL, ctypes.c_void_p(address), WAIT, seen_word, ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    if SYSCALL is not None:
        _call(SYSCALL, ctypes.c_void_p(address), WAKE, EVERYBODY, None, None, 0)
