"""What a process does to itself before it trains."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def die_with_parent(_: int = 0) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def quicken() -> None:
    """Without this every gradient of more than 128 KiB is a fresh mapping, page-faulted in on each step: 15% of a large
    one; and every short sleep lasts 50 microseconds longer.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, 1)  # nanosecond
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
