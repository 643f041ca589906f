"""Ends a child process that the user's code forked and let return into the training, where it would train as well."""

from __future__ import annotations

import mmap
import os
from functools import cache

from paceline.errors import JobError

NUMBER = 8  # bytes of a process number


def watched() -> tuple[int, mmap.mmap]:
    """Return this process, and the memory in which its children leave their number; to be called before users' code."""
    process = os.getpid()
    return process, _shared(process)


def check(process: int, returned: mmap.mmap) -> None:
    """Let a child of the process end here, and raise `JobError` in the process itself once one has returned."""
    if os.getpid() != process:
        returned[:] = os.getpid().to_bytes(NUMBER, "little")
        os._exit(1)
    if child := int.from_bytes(returned[:], "little"):
        returned[:] = bytes(NUMBER)  # the next training of this process begins without it
        raise JobError(
            f"the job's code forked process {child} and let it return into the training, which would then run twice; "
            "end a child by os._exit(), or start it by subprocess or multiprocessing"
        )


@cache
def _shared(process: int) -> mmap.mmap:
    return mmap.mmap(-1, NUMBER)
