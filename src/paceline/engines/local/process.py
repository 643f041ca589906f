"""What a process does to itself before it trains, and what the kernel tells of it."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from pathlib import Path

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


STATES = {
    "T": "is stopped (SIGSTOP, or a debugger)",
    "t": "is stopped (SIGSTOP, or a debugger)",
    "D": "waits for a disk",
    "R": "computes: it is slow, or in a loop without end",
    "S": "sleeps: it waits for something itself",
    "Z": "has ended",
}


def state_of(pid: int | None) -> str:
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        letter = "Z"
    return STATES.get(letter, f"is in state {letter}")


def oom_kills() -> int:
    """How often the kernel has ended a process for want of memory, since it started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def tighten() -> None:
    """Where memory is scarce: every tensor of 128 KiB or more is a mapping, gone when it is let go. A heap keeps gaps
    between them, half as much again where gradients come and go. Fresh pages cost 1.1 to 1.8 times the processor's
    time (benchmarks/pipelines).
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, 1)  # nanosecond
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 17)


def give_back() -> None:
    """Let the kernel have what is free in the heap, and count the most memory there has been from here on."""
    ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory(what: str) -> int:
    """Bytes of memory that this process has: RssAnon, its own; RssShmem, that is shared; RssFile, of files, such as
    libraries; VmHWM, the most that all three have been.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what + ":")), 0)


def core_wait() -> int:
    """Nanoseconds for which this process could have run, but had no core."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
