"""Settings that a process makes for itself before it trains, and figures that the kernel reports about it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from multiprocessing import forkserver
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def become_worker(memory_bounded: bool) -> None:
    """Let this process end with its parent, and leave signals to it; `memory_bounded`: its memory is."""
    for each in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all processes; the parent decides
        signal.signal(each, signal.SIG_IGN)
    # The forkserver ends when the last copy of this pipe is closed, which must be the parent's; a worker ends with the
    # forkserver, and so must have said that first.
    die_with_parent()
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    tune_for_memory() if memory_bounded else tune_for_speed()
    trim_heap()


def die_with_parent(_: int = 0) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tune_for_speed() -> None:
    """Keep freed memory, and let short sleeps end on time.

    Otherwise every gradient of more than 128 KiB is a new mapping, whose page faults cost up to 15% of a step, and
    every short sleep lasts 50 microseconds longer.
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
    """Describe the state of a process, as the kernel reports it."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        letter = "Z"
    return STATES.get(letter, f"is in state {letter}")


def oom_kills() -> int:
    """Return how many processes the kernel's out-of-memory killer has ended since the machine booted."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def tune_for_memory() -> None:
    """Return freed memory to the kernel at once: every tensor of 128 KiB or more is a mapping.

    A heap keeps gaps between tensors, half as much again where gradients are allocated and freed. New pages cost 1.1 to
    1.8 times the processor's time (benchmarks/pipelines).
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, 1)  # nanosecond
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 17)


def trim_heap() -> None:
    """Return the free part of the heap to the kernel, and restart the measurement of peak memory."""
    ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def memory(what: str) -> int:
    """Return a figure in bytes of this process's memory.

    RssAnon is its own memory, RssShmem is shared memory, RssFile is files such as libraries, and VmHWM is the peak of
    their sum.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what + ":")), 0)


def core_wait() -> int:
    """Return the nanoseconds for which this process could have run, but had no core."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
