"""Starting multiprocessing's forkserver so that it leaves nothing behind when the process tree is killed.

It listens on a socket whose name would stay in /tmp then. So the name is unlinked as soon as the server listens, and
later connections use a descriptor of the socket itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, process, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# Modules that every worker needs, imported once.
PRELOAD = ("paceline.engines.workers.process_main",)
#: The process that started the forkserver with less than that, if one did.
_light: int | None = None


def prepare(preload: Sequence[str] = PRELOAD) -> None:
    """Start the forkserver with these modules loaded, if it does not run yet.

    One that was started with less than PRELOAD, and has no children, is replaced when that is needed. SIGINT and
    SIGTERM stay blocked in it and in the workers that it starts, since a terminal sends them to all processes and the
    parent decides what they mean.
    """
    global _light
    if preload is PRELOAD and _light == os.getpid() and not multiprocessing.active_children():
        _end()
    forkserver.set_forkserver_preload([*preload, "paceline.engines.workers.forkserver_exit"])
    with _folder_unseen():
        resource_tracker.ensure_running()  # which would let the signals through again
    server: Any = forkserver._forkserver
    this: Any = process.current_process()
    settings = this._config
    before = settings.pop("tempdir", None)
    with interrupts_wait(), tempfile.TemporaryDirectory(prefix="pymp-", dir=short_folder()) as folder:
        settings["tempdir"] = folder
        try:
            begun = server._forkserver_pid
            with _folder_unseen():
                server.ensure_running()
            if server._forkserver_pid != begun:
                _light = None if preload is PRELOAD else os.getpid()
            if str(server._forkserver_address).startswith(folder):
                socket = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
                server._forkserver_address = f"/proc/self/fd/{socket}"
        finally:
            settings.pop("tempdir")
            if before is not None:
                settings["tempdir"] = before


@contextlib.contextmanager
def _folder_unseen() -> Iterator[None]:
    """Let Python start without the working folder in its path, where a `random.py` would be taken for Python's own.

    Workers get the path of their parent. Before Python 3.11 there is no such option.
    """
    flags: Any = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    if sys.version_info >= (3, 11):
        util._args_from_interpreter_flags = lambda: [*flags(), "-P"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        util._args_from_interpreter_flags = flags  # type: ignore[attr-defined]


def _end() -> None:
    """End the forkserver."""
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    os.waitpid(server._forkserver_pid, 0)
    folder, _, descriptor = str(server._forkserver_address).rpartition("/")
    if folder == "/proc/self/fd":
        os.close(int(descriptor))
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def short_folder() -> Path:
    """Return the temporary folder, or /tmp where a socket's name would be too long in it."""
    usual = Path(tempfile.gettempdir())
    return Path("/tmp") if too_long(usual) else usual


def too_long(folder: Path) -> bool:
    """Return whether a socket in this folder could have a name of more than 107 characters, the most allowed."""
    return len(str(folder.absolute())) > 60


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the block; processes that it starts keep them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_process(
    target: Callable[..., None], args: tuple[object, ...], duplex: bool = True
) -> tuple[BaseProcess, Connection]:
    """Start a process from the forkserver; return it with this end of the pipe whose other end is its last argument."""
    context = multiprocessing.get_context("forkserver")
    with nameless_main():
        prepare()
        mine, theirs = context.Pipe(duplex)
        started = context.Process(target=target, args=(*args, theirs))
        with interrupts_wait():
            started.start()
        theirs.close()
    return started, mine


@contextlib.contextmanager
def nameless_main() -> Iterator[None]:
    """Let multiprocessing start processes without importing the user's script again in each.

    It would run the script of `python train.py` once more per worker, so that every script needed an
    `if __name__ == "__main__"`. The objects that workers need of it are pickled by value (cloudpickle) instead.
    """
    real = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = real
