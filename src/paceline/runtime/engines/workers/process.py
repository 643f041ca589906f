"""How worker processes start, by multiprocessing's forkserver, and what a process sets and measures of itself."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import forkserver, process, resource_tracker, util
from multiprocessing.connection import Connection, arbitrary_address  # type: ignore[attr-defined]
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

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


# Starting multiprocessing's forkserver so that it leaves nothing behind when the process tree is killed.
#
# It listens on a socket whose name would stay in /tmp then. So the name is unlinked as soon as the server listens, and
# later connections use a descriptor of the socket itself.

# Modules that every worker needs, imported once.
PRELOAD = ("paceline.runtime.engines.workers.process_main",)
#: What PyTorch imports when a process makes its first DistributedDataParallel: 800 modules, a second.
DDP = ("torch._dynamo.utils",)


class _Start(NamedTuple):
    """How the forkserver of a process was started."""

    by: int  # a process whose children inherit this, though the forkserver is not theirs
    preload: Sequence[str]
    #: The variables of the environment at that time, if it was before the job was known: its file may set some.
    environment: dict[str, str] | None
    #: Whether it is a copy of that process, which had imported what workers need.
    is_copy: bool = False

    def serves(self, preload: Sequence[str]) -> bool:
        """Whether its processes have the modules and the environment that the job needs."""
        if self.environment is not None:
            return preload is PRELOAD and self.environment == os.environ
        return self.preload is PRELOAD or preload is not PRELOAD


_start: _Start | None = None


def fork_early(ddp: bool = False) -> None:
    """Import PyTorch in this process, and fork the forkserver from it, so that it is imported once for both.

    A process that has computed cannot be forked, since its threads are missing in the copy. So nothing is done if
    PyTorch was imported before, and `prepare` starts a forkserver that imports it. `ddp`: workers of that plan follow,
    and the forkserver imports what they need while this process goes on.
    """
    if "torch" in sys.modules or threading.active_count() > 1 or _authenticates():
        return
    _import(PRELOAD)
    with nameless_main():
        _ensure_running(PRELOAD, partial(_fork, DDP if ddp else ()), dict(os.environ), is_copy=True)


def _import(names: Sequence[str]) -> None:
    """Import modules that processes to be forked need."""
    gc.disable()  # which would walk through all modules again and again, a fifth of the time that they take
    for name in names:
        importlib.import_module(name)
    gc.freeze()  # a worker does not copy the memory that they lie in, only to walk through them
    gc.enable()


def fork_anew() -> None:
    """Fork a forkserver of its own from this process, which a forkserver has started and which has not computed yet."""
    server: Any = forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = server._inherited_fds = None
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    _ensure_running(PRELOAD, partial(_fork, ()), is_copy=True)


def starts_at_once() -> bool:
    """Whether processes can begin without an import of PyTorch, which takes seconds."""
    return _start is not None and _start.by == os.getpid() and _start.is_copy


def prepare(preload: Sequence[str] = PRELOAD) -> None:
    """Start the forkserver with these modules loaded, if it does not run yet.

    One without children is replaced if it was started with less than PRELOAD, and that is needed, or before it was
    known that the job needs less, or another environment. SIGINT and SIGTERM stay blocked in it and in the workers that
    it starts, since a terminal sends them to all processes and the parent decides what they mean.
    """
    global _start
    if _start and _start.by == os.getpid() and not multiprocessing.active_children():
        if not _start.serves(preload):
            _end()
        _start = _start._replace(environment=None)
    forkserver.set_forkserver_preload([*preload, "paceline.runtime.engines.workers.forkserver_exit"])
    _ensure_running(preload, forkserver.ensure_running)


def _ensure_running(
    preload: Sequence[str],
    start: Callable[[], None],
    environment: dict[str, str] | None = None,
    is_copy: bool = False,
) -> None:
    """Start the forkserver in this way, if it does not run yet."""
    global _start
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
                start()
            if server._forkserver_pid != begun:
                _start = _Start(os.getpid(), preload, environment, is_copy)
            if str(server._forkserver_address).startswith(folder):
                descriptor = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
                server._forkserver_address = f"/proc/self/fd/{descriptor}"
        finally:
            settings.pop("tempdir")
            if before is not None:
                settings["tempdir"] = before


def _authenticates() -> bool:
    """Whether clients of the forkserver authenticate themselves, by a key that it reads when it starts: Python 3.14."""
    return hasattr(forkserver._forkserver, "_forkserver_authkey")


def _fork(further: Sequence[str]) -> None:
    """Start the forkserver as a copy of this process, which imports further modules."""
    server: Any = forkserver._forkserver
    with socket.socket(socket.AF_UNIX) as listener:
        address = arbitrary_address("AF_UNIX")
        listener.bind(address)
        listener.listen()
        alive, mine = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # what they hold would be written by each copy
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        with warnings.catch_warnings():  # of threads, such as those of a library of linear algebra, which starts anew
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                _serve(listener.fileno(), alive, further)
            finally:
                os._exit(0)
        os.close(alive)
        server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, mine, pid


def _serve(listener: int, alive: int, further: Sequence[str]) -> None:
    """Be the forkserver, without what this process was before it was forked."""
    for each in signal.valid_signals():
        if callable(signal.getsignal(each)):
            signal.signal(each, signal.SIG_DFL)
    warnings.showwarning = warnings._showwarning_orig  # type: ignore[attr-defined]
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in (listener, alive):
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
    _import(further)
    forkserver.main(listener, alive, [])


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
