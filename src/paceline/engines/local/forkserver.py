"""multiprocessing's forkserver, so that it outlives what its users must not, and leaves nothing behind.

It listens on a socket, whose name would stay in /tmp when the whole process tree is killed. So the name is taken away
as soon as it listens; what knocks there later goes by a descriptor of the socket itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver, process, resource_tracker
from pathlib import Path
from typing import Any

# What workers need, imported once for all of them; every optimizer takes half a second to import the second.
PRELOAD = ["paceline.engines.local.process_main", "torch._dynamo", "paceline.engines.local.forkserver_exit"]


def prepare() -> None:
    """Have it running. SIGINT and SIGTERM stay blocked in it, and in the workers it starts, also where they are sent to
    all processes: it is the parent who decides.
    """
    forkserver.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # which would let the signals through again
    server: Any = forkserver._forkserver
    this: Any = process.current_process()
    settings = this._config
    before = settings.pop("tempdir", None)
    with interrupts_wait(), tempfile.TemporaryDirectory(prefix="pymp-", dir=short_folder()) as place:
        settings["tempdir"] = place
        try:
            server.ensure_running()
            if str(server._forkserver_address).startswith(place):
                socket = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
                server._forkserver_address = f"/proc/self/fd/{socket}"
        finally:
            settings.pop("tempdir")
            if before is not None:
                settings["tempdir"] = before


def short_folder() -> Path:
    """For what lies somewhere for a moment, sockets too."""
    usual = Path(tempfile.gettempdir())
    return Path("/tmp") if too_long(usual) else usual


def too_long(folder: Path) -> bool:
    """For sockets: their names may have 107 characters."""
    return len(str(folder.absolute())) > 60


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """A Ctrl-C or SIGTERM now comes a moment later. What is started meanwhile never sees one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
