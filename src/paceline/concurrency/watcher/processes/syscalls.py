"""The system calls in which a thread waits, by their numbers, and what their arguments say."""

from __future__ import annotations

import platform
from typing import NamedTuple

#: name: number on x86-64 and on 64-bit ARM; -1 where the processor has no such call.
_NUMBERS = {
    "read": (0, 63), "readv": (19, 65), "recvfrom": (45, 207), "recvmsg": (47, 212),
    "write": (1, 64), "writev": (20, 66), "sendto": (44, 206), "sendmsg": (46, 211), "sendfile": (40, 71),
    "accept": (43, 202), "accept4": (288, 242), "connect": (42, 203),
    "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72),
    "epoll_wait": (232, -1), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "wait4": (61, 260), "waitid": (247, 95),
    "open": (2, -1), "openat": (257, 56),
    "flock": (73, 32), "fcntl": (72, 25),
    "futex": (202, 98),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "restart_syscall": (219, 128),
    "pause": (34, -1), "rt_sigsuspend": (130, 133),
    "fsync": (74, 82), "fdatasync": (75, 83),
}  # fmt: skip
NAMES = {numbers[platform.machine() == "aarch64"]: name for name, numbers in _NUMBERS.items()}

READS = frozenset({"read", "readv", "recvfrom", "recvmsg"})
ACCEPTS = frozenset({"accept", "accept4"})
SLEEPS = frozenset({"nanosleep", "clock_nanosleep", "restart_syscall"})
WRITES = frozenset({"write", "writev", "sendto", "sendmsg", "sendfile"})
#: The argument that holds the timeout: a number of milliseconds, or the address of a timespec (none: 0).
MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
TIMESPEC = {"ppoll": 2, "select": 4, "pselect6": 4, "epoll_pwait2": 3, "futex": 3}

#: The arguments that hold the path and how to open it.
OPENS = {"open": (0, 1), "openat": (1, 2)}

#: The argument with the address of the time to sleep, and the one with flags: whether that is a moment.
SLEPT = {"nanosleep": (0, None), "clock_nanosleep": (2, 1)}

_FUTEX_PRIVATE = 128
F_SETLKW, F_OFD_SETLKW = 7, 38


class SystemCall(NamedTuple):
    """The system call that a thread is in; the name is empty for those that this module does not know."""

    name: str
    arguments: tuple[int, ...]

    @property
    def ends_by_itself(self) -> bool:
        """Whether a timeout will end it."""
        if self.name in MILLISECONDS:
            return self.arguments[MILLISECONDS[self.name]] & 0xFFFFFFFF < 0x80000000
        return self.name in TIMESPEC and self.arguments[TIMESPEC[self.name]] != 0

    @property
    def is_private(self) -> bool:
        """Whether only threads of the same process can end it, of a futex."""
        return self.arguments[1] & _FUTEX_PRIVATE != 0


def parse_call(text: str) -> SystemCall | None:
    """Parse /proc/PID/task/TID/syscall; None where it may not be read, or the thread runs or is in no system call."""
    fields = text.split()
    if len(fields) < 7 or not fields[0].isdecimal():
        return None
    return SystemCall(NAMES.get(int(fields[0]), ""), tuple(int(field, 16) for field in fields[1:7]))
