"""The kernel's futex: a process sleeps on an integer in shared memory until another one wakes it.

It needs no descriptor, so whatever lies in shared memory can be slept on by every process that maps it. A round trip of
two sleeping processes costs the same as with an eventfd.
"""

from __future__ import annotations

import ctypes
import os
import time

# The C library has no function for it, and the number of the system call depends on the processor.
SYSCALL = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
WAIT, WAKE, ALL = 0, 1, 2**31 - 1
SHORT_NAP = 100e-6  # seconds; where the number is not known, a sleeper looks again that often


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ARGUMENTS = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.POINTER(Timespec),
    ctypes.c_void_p,
    ctypes.c_int,
)
# Waiting releases the interpreter's lock, for the other threads. Waking does not wait, and is cheaper with the lock.
_wait = ctypes.CDLL(None).syscall
_wake = ctypes.PyDLL(None).syscall
_wait.argtypes = _wake.argtypes = _ARGUMENTS
_wait.restype = _wake.restype = ctypes.c_long


def address_of(place: memoryview) -> int:
    """The address of a part of shared memory, valid as long as the memory is mapped."""
    return ctypes.addressof(ctypes.c_char.from_buffer(place))


def sleep(address: int, expected: int, seconds: float) -> None:
    """Sleep until woken, for at most `seconds`; not at all if the integer is no longer what was `seen`."""
    if SYSCALL is None:
        time.sleep(min(seconds, SHORT_NAP))
        return
    limit = Timespec(int(seconds), int(seconds % 1 * 1e9))
    _wait(SYSCALL, address, WAIT, expected & 0xFFFFFFFF, ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake every process that sleeps on the integer."""
    if SYSCALL is not None:
        _wake(SYSCALL, address, WAKE, ALL, None, None, 0)
