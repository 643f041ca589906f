"""What /proc and the kernel say of real processes, threads and sockets."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import filelock
import pytest

from paceline.concurrency.watcher.graph import find_knot
from paceline.concurrency.watcher.processes import interpreter, proc, stacks
from paceline.concurrency.watcher.processes.holders import peers, private_listeners
from paceline.concurrency.watcher.processes.objects import LAYOUTS
from paceline.concurrency.watcher.samples import A_LOCK, ENDED, EVENT, Frame, ThreadWait
from paceline.concurrency.watcher.waits import parse_call


def until(found: Callable[[], bool]) -> None:
    """Wait until something is the case; the test's own timeout ends what never becomes so."""
    while not found():
        time.sleep(0.01)


def inode(end: socket.socket) -> int:
    return os.fstat(end.fileno()).st_ino


def test_both_ends_of_a_socket_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there = server.accept()[0]
        with there:
            assert peers()[inode(here)] == inode(there)
    a, b = socket.socketpair()
    with a, b:
        assert (peers()[inode(a)], peers()[inode(b)]) == (inode(b), inode(a))


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0)), (socket.AF_UNIX, None)]
)
def test_the_other_end_of_what_is_not_accepted_yet_is_the_listening_socket(
    family: int, address: object, tmp_path: Path
) -> None:
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind(address or str(tmp_path / "server"))
        server.listen()
        client.connect(server.getsockname())
        assert peers()[inode(client)] == inode(server)
        accepted = server.accept()[0]
        with accepted:
            assert peers()[inode(client)] == inode(accepted)


def test_a_listener_of_multiprocessing_serves_its_own_program(tmp_path: Path) -> None:
    with Listener() as private, Listener(str(tmp_path / "listener-of-all"), "AF_UNIX") as public:
        inodes = [inode(each._listener._socket) for each in (private, public)]
        assert [each in private_listeners() for each in inodes] == [True, False]


PROGRAMS = {
    "pipe": "import os; os.read(os.pipe()[0], 1)",
    "lock": "import threading as t; l = t.Lock(); l.acquire(); l.acquire()",
    "clock": "import time; time.sleep(1000)",
    "socket": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "socket of its own server": "import socket as s; a = s.create_server(('', 0)); "
    "s.create_connection(a.getsockname()).recv(1)",
    "child": "import os, time; os.fork() or time.sleep(1000); os.wait()",
    "outside": "import socket; socket.create_server(('127.0.0.1', 0)).accept()",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "shared lock": "import multiprocessing as m; l = m.Lock(); l.acquire(); l.acquire()",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_process_is_seen_to_wait_for_what_it_waits_for(kind: str) -> None:
    """While a descriptor is on its way between two processes of the machine, whichever they are, its receiver is named
    as well, until it has received it.
    """
    started = subprocess.Popen([sys.executable, "-c", PROGRAMS[kind]])
    by = {"child": lambda: tuple(set(proc.tree([started.pid])) - {started.pid})} | dict.fromkeys(
        ("pipe", "lock", "socket", "shared lock"), lambda: (started.pid,)
    )

    def waits() -> bool:
        main, wanted = proc.snapshot([started.pid]).processes[0].main, kind.removesuffix(" of its own server")
        return main.kind == wanted and (wanted not in by or main.by == by[wanted]())

    try:
        until(waits)
    finally:
        for pid in reversed(proc.tree([started.pid])):
            os.kill(pid, 9)
        started.wait()


def test_a_program_that_writes_to_a_terminal_waits_for_the_process_that_could_read_it() -> None:
    here, there = pty.openpty()
    with subprocess.Popen(["seq", "1000000"], stdout=there) as started:
        try:
            until(lambda: proc.snapshot([started.pid]).processes[0].main.kind == "pipe")
            assert proc.snapshot([started.pid]).processes[0].main.by == (os.getpid(),)
        finally:
            started.kill()
            os.close(here)
            os.close(there)


@pytest.mark.skipif(sys.version_info[:2] not in LAYOUTS, reason="an unknown version of CPython")
@pytest.mark.parametrize("readable", [True, False])
def test_a_result_of_a_pool_is_delivered_by_one_thread(readable: bool, tmp_path: Path) -> None:
    """The thread ends when it cannot read a result, and then nothing delivers the others."""
    script = tmp_path / "pool.py"
    script.write_text(f"""
import multiprocessing, time

class Failure(Exception):
    def __init__(self, table, key):
        super().__init__(table)

def work(number):
    if {readable}:
        time.sleep(600)
    raise Failure("orders", number)

if __name__ == "__main__":
    multiprocessing.get_context("fork").Pool(1).apply(work, (1,))
""")
    with subprocess.Popen([sys.executable, script], stderr=subprocess.DEVNULL) as started:

        def main() -> ThreadWait:
            return next(each.main for each in proc.snapshot([started.pid]).processes if each.pid == started.pid)

        try:
            until(lambda: main().on == "a result of a pool")
            until(lambda: (main().owners == (ENDED,)) == (not readable))
            process = next(each for each in proc.snapshot([started.pid]).processes if each.pid == started.pid)
            owners = process.main.owners
        finally:
            for number in (signal.SIGSTOP, signal.SIGKILL):  # a pool starts a worker anew that is ended before it
                for pid in proc.tree([started.pid]):
                    os.kill(pid, number)
    delivers = [tid for tid in process.tids if "_handle_results" in {f.function for f in process.stack_of(tid)}]
    assert owners == tuple(delivers or [ENDED])
    assert bool(delivers) == readable


@pytest.mark.soak
@pytest.mark.parametrize(("timeout", "polls"), [(0, "asks"), (600, "")])
def test_a_data_loader_asks_its_workers_unless_it_has_a_timeout(timeout: int, polls: str, tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(f"""
import time
from torch.utils.data import DataLoader

class Slow:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600)

if __name__ == "__main__":
    next(iter(DataLoader(Slow(), num_workers=1, timeout={timeout})))
""")
    with subprocess.Popen([sys.executable, script], stderr=subprocess.DEVNULL) as started:

        def loads() -> bool:
            stack = proc.snapshot([started.pid]).processes[0].stacks[:1]
            return any(frame.function == "_try_get_data" for frame in (stack[0] if stack else ()))

        try:
            until(loads)
            until(lambda: proc.snapshot([started.pid]).processes[0].main.kind == "clock")
            assert proc.snapshot([started.pid]).processes[0].main.polls == polls
        finally:
            for pid in reversed(proc.tree([started.pid])):
                os.kill(pid, 9)


def test_a_thread_that_sleeps_does_not_run() -> None:
    sleeping = threading.Event()
    thread = threading.Thread(target=sleeping.wait)
    thread.start()
    try:
        tid = thread.native_id
        until(lambda: {t.tid: t.wait.kind for t in proc.snapshot([os.getpid()]).processes[0].threads}[tid] == "lock")
        first, second = proc.counters([os.getpid()]), proc.counters([os.getpid()])
        assert first.threads[os.getpid()][tid] == second.threads[os.getpid()][tid]
        assert second.threads[os.getpid()][threading.main_thread().native_id].ran > 0
    finally:
        sleeping.set()
        thread.join()


@pytest.mark.skipif(sys.version_info[:2] not in LAYOUTS, reason="an unknown version of CPython")
@pytest.mark.parametrize("timeout", [-1, 600])
def test_a_lock_of_the_library_filelock_is_held_by_the_process_that_has_its_file(timeout: int, tmp_path: Path) -> None:
    file = tmp_path / "cache.lock"
    text = f"import filelock; filelock.FileLock({str(file)!r}, timeout={timeout}).acquire(poll_interval=0.2)"
    with filelock.FileLock(file), subprocess.Popen([sys.executable, "-c", text]) as started:
        try:
            until(
                lambda: any(
                    "filelock" in frame.file and each.main.kind == "clock"
                    for each in proc.snapshot([started.pid]).processes
                    for frame in each.stack_of(started.pid)
                )
            )
            main = proc.snapshot([started.pid]).processes[0].main
            assert (main.polls, main.by) == (("asks", (os.getpid(),)) if timeout < 0 else ("", ()))
        finally:
            started.kill()


def test_a_process_that_has_ended_is_left_out() -> None:
    started = subprocess.Popen(["true"])
    until(lambda: not proc.counters([started.pid]).threads)  # a zombie, then
    assert proc.snapshot([started.pid]).processes == ()
    started.wait()
    assert proc.tree([started.pid]) == ()


@pytest.mark.parametrize("text", ["running", "-1 0x7ffc 0x7f85", "", "0"])
def test_a_thread_in_no_system_call_is_not_guessed_at(text: str) -> None:
    assert parse_call(text) is None


def test_a_program_tells_its_lines_and_runs_its_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.OWN = 1\n")
    script = tmp_path / "waits.py"
    script.write_text("import threading\nassert OWN\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n")
    variables = stacks.environment(tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)})
    with subprocess.Popen([sys.executable, script], env=variables) as started:
        try:
            until(lambda: proc.snapshot([started.pid]).processes[0].main == ThreadWait("lock", (started.pid,), A_LOCK))
            for _ in range(2):  # answering once does not end the ability to answer
                assert stacks.ask(tmp_path, [started.pid], 60.0) == {
                    started.pid: ((Frame(str(script), 5, "<module>"),),)
                }
        finally:
            started.kill()


def test_a_process_that_does_not_handle_the_signal_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as started:
        try:
            assert stacks.ask(tmp_path, [started.pid]) == {}
            assert started.poll() is None
        finally:
            started.kill()


def test_the_main_threads_stack_comes_first() -> None:
    text = (
        'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in work\n\n'
        'Current thread 0x02 (most recent call first):\n  File "b.py", line 2 in main\n'
        '  File "b.py", line 9 in <module>\n'
    )
    assert stacks.parse(text) == (
        (Frame("b.py", 2, "main"), Frame("b.py", 9, "<module>")),
        (Frame("a.py", 1, "work"),),
    )


def test_another_version_of_python_tells_its_lines_by_faulthandler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "LAYOUTS", {})
    interpreter._runtime.cache_clear()
    variables = stacks.environment(tmp_path, dict(os.environ))
    with subprocess.Popen([sys.executable, "-c", PROGRAMS["lock"]], env=variables) as started:
        try:
            until(lambda: proc.snapshot([started.pid]).processes[0].main.kind == "lock")
            snapshot = proc.snapshot([started.pid])
            assert snapshot.stacks_of(started.pid) == ()
            assert snapshot.processes[0].main.owners == ()
            told = snapshot.with_stacks(stacks.ask(tmp_path, [started.pid], 60.0))
            assert told.stacks_of(started.pid) == ((Frame("<string>", 1, "<module>"),),)
            assert find_knot(told, lambda *_: True) is not None
        finally:
            started.kill()
            interpreter._runtime.cache_clear()


OPENS = """
import os, sys, tempfile
fifo = os.path.join(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(), "jobs")
os.path.exists(fifo) or os.mkfifo(fifo)
open(fifo).read()
"""


def test_a_named_pipe_is_private_in_a_folder_of_which_no_other_program_was_told(tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(dir=tmp_path)
    for words, kind in (([], "named pipe"), ([folder], "outside")):
        with subprocess.Popen([sys.executable, "-c", OPENS, *words], env={"TMPDIR": str(tmp_path)}) as started:
            until(lambda kind=kind, pid=started.pid: proc.snapshot([pid]).processes[0].main.kind == kind)  # type: ignore[misc]
            started.kill()


def test_an_event_is_of_the_processes_that_have_it_open() -> None:
    program = "import os; e = os.eventfd(0); os.fork(); os.read(e, 8)"
    with subprocess.Popen([sys.executable, "-c", program]) as started:
        until(lambda: [each.main.on for each in proc.snapshot(proc.tree([started.pid])).processes] == [EVENT] * 2)
        pids = proc.tree([started.pid])
        parent = subprocess.Popen(["sleep", "100"])
        snapshot = proc.snapshot([*pids, parent.pid])
        assert all(each.main.by == pids for each in snapshot.processes if each.pid in pids)
        for pid in (*pids, parent.pid):
            os.kill(pid, 9)
        parent.wait()


SENDS = """
import os, socket, sys, time
there, here = os.pipe()
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect(sys.argv[1])
    socket.send_fds(channel, [b"x"], [here])
    os.close(here)
    os.read(there, 1)
"""


def test_a_pipe_may_be_on_the_way_to_the_process_that_will_write_to_it(tmp_path: Path) -> None:
    """As a fork server's that still imports: it has accepted no connection, and so no process has the pipe open."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        started = subprocess.Popen([sys.executable, "-c", SENDS, str(tmp_path / "server")])
        try:
            until(lambda: proc.snapshot([started.pid]).processes[0].main.kind == "pipe")
            until(lambda: proc.snapshot([started.pid]).processes[0].main.by == (os.getpid(),))
        finally:
            started.kill()
            started.wait()


def test_a_pipe_is_not_on_the_way_to_a_process_that_another_program_sends_to(tmp_path: Path) -> None:
    """A fork server elsewhere on the machine, which has not received yet what its own program has sent, is none."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        other = subprocess.Popen([sys.executable, "-c", SENDS, str(tmp_path / "server")])
        started = subprocess.Popen([sys.executable, "-c", PROGRAMS["pipe"]])

        def main_of(process: subprocess.Popen[bytes]) -> Any:
            return proc.snapshot([process.pid]).processes[0].main

        try:
            until(lambda: main_of(other).kind == "pipe")
            until(lambda: main_of(started).kind == "pipe")
            # Another program of the machine may be about to send something just now, and has done so a moment later.
            until(lambda: main_of(started).by == (started.pid,))
        finally:
            for process in (started, other):
                process.kill()
                process.wait()
