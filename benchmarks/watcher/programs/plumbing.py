"""Threads, processes and coroutines of Python's library that wait for something slow; run only to judge."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import queue
import sched
import select
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from programs.parts import BIN


def tasks_that_wait_for_a_slow_task() -> None:
    def slow() -> int:
        time.sleep(55)
        return 1

    with ThreadPoolExecutor(3) as pool:
        while True:
            first = pool.submit(slow)
            for each in as_completed([pool.submit(first.result) for _ in range(2)]):
                each.result()


def semaphore_of_coroutines() -> None:
    async def main() -> None:
        slots = asyncio.Semaphore(2)

        async def fetch() -> None:
            while True:
                async with slots:
                    await asyncio.sleep(26)

        await asyncio.gather(*(fetch() for _ in range(5)))

    asyncio.run(main())


def coroutine_with_a_child() -> None:
    async def main() -> None:
        while True:
            child = await asyncio.create_subprocess_exec("sleep", "38", stdout=subprocess.PIPE)
            await child.communicate()

    asyncio.run(main())


def coroutine_woken_by_a_thread() -> None:
    async def main() -> None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[int]()

        def read() -> None:
            while True:
                time.sleep(46)
                loop.call_soon_threadsafe(arrived.put_nowait, 1)

        threading.Thread(target=read, daemon=True).start()
        while True:
            await arrived.get()

    asyncio.run(main())


def scheduler_of_the_library() -> None:
    plan = sched.scheduler()

    def report() -> None:
        plan.enter(40, 1, report)

    report()
    plan.run()


def timer_that_rings_late() -> None:
    ring = threading.Event()
    while True:
        threading.Timer(53, ring.set).start()
        ring.wait()
        ring.clear()


def _waits(event: Event) -> None:
    event.wait()


def process_that_waits_for_its_start() -> None:
    event = multiprocessing.Event()
    workers = [multiprocessing.Process(target=_waits, args=(event,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(900)
    event.set()


def _arrives(barrier: Barrier, pause: float) -> None:
    while True:
        time.sleep(pause)
        barrier.wait()


def barrier_of_processes() -> None:
    barrier = multiprocessing.Barrier(3)
    for pause in (0, 0, 29):
        multiprocessing.Process(target=_arrives, args=(barrier, pause)).start()


def pool_of_processes_with_one_slow_task() -> None:
    with ProcessPoolExecutor(2) as pool:
        while True:
            list(pool.map(time.sleep, [1, 47]))


def signal_that_is_awaited() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.sigwait({signal.SIGUSR1})


def pipe_to_itself() -> None:
    """A loop that is woken through a pipe by its signal handlers, and by a client."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into)
    signal.signal(signal.SIGHUP, lambda *_: None)
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ)
        while True:
            ready.select()
            os.read(out, 100)


def folder_through_inotify() -> None:
    library = ctypes.CDLL(None)
    descriptor = library.inotify_init()
    library.inotify_add_watch(descriptor, tempfile.mkdtemp().encode(), 0x100)
    os.read(descriptor, 1000)


def log_that_is_followed() -> None:
    with tempfile.NamedTemporaryFile("w+") as log:
        while True:
            line = log.readline()
            if line.startswith("end"):
                break
            time.sleep(0.7)


def worker_on_a_pair_of_sockets() -> None:
    """A parent that serves clients, and a worker that it asks when one comes."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        while there.recv(100):
            there.sendall(b"done")
        os._exit(0)
    there.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        while True:
            client, _ = server.accept()
            here.sendall(client.recv(100))
            client.sendall(here.recv(100))


def prefetcher_with_a_full_queue() -> None:
    ahead: queue.Queue[int] = queue.Queue(2)

    def read() -> None:
        while True:
            ahead.put(1)

    threading.Thread(target=read, daemon=True).start()
    while True:
        ahead.get()
        time.sleep(34)


def child_whose_output_comes_seldom() -> None:
    with subprocess.Popen(["sh", "-c", "while true; do sleep 44; echo x; done"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in child.stdout:
            pass


def lines_sent_to_a_child_that_thinks() -> None:
    """A parent and its child talk by two pipes; the child takes long for each answer."""
    code = "import sys, time\nfor line in sys.stdin:\n    time.sleep(36)\n    print(line, flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(BIN / "python"), "-c", code], **pipes) as child:  # type: ignore[call-overload]
        while True:
            child.stdin.write("next\n")
            child.stdin.flush()
            child.stdout.readline()
            child.stdout.readline()


def lock_on_a_file_of_a_slow_writer() -> None:
    import fcntl

    file = Path(tempfile.mkdtemp()) / "mailbox"
    if os.fork() == 0:
        while True:
            with file.open("w") as held:
                fcntl.lockf(held, fcntl.LOCK_EX)
                time.sleep(39)
    time.sleep(1)
    while True:
        with file.open("w") as wanted:
            fcntl.lockf(wanted, fcntl.LOCK_EX)
        time.sleep(2)


def timer_as_a_descriptor() -> None:
    """What a loop in C does: it sleeps in poll on a timer of the kernel."""
    library = ctypes.CDLL(None)
    timer = library.timerfd_create(1, 0)
    library.timerfd_settime(timer, 0, (ctypes.c_long * 4)(37, 0, 37, 0), None)
    while True:
        select.select([timer], [], [])
        os.read(timer, 8)


def condition_of_a_reader_of_slow_data() -> None:
    """Consumers wait for a condition that a thread notifies which reads from a child."""
    arrived = threading.Condition()

    def consume() -> None:
        with arrived:
            while True:
                arrived.wait()

    for _ in range(3):
        threading.Thread(target=consume, daemon=True).start()
    with subprocess.Popen(["sh", "-c", "while true; do sleep 32; echo x; done"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in child.stdout:
            with arrived:
                arrived.notify_all()


PROGRAMS = {
    each.__name__: each
    for each in (
        tasks_that_wait_for_a_slow_task, semaphore_of_coroutines, coroutine_with_a_child, coroutine_woken_by_a_thread,
        scheduler_of_the_library, timer_that_rings_late, process_that_waits_for_its_start, barrier_of_processes,
        pool_of_processes_with_one_slow_task, signal_that_is_awaited, pipe_to_itself, folder_through_inotify,
        log_that_is_followed, worker_on_a_pair_of_sockets, prefetcher_with_a_full_queue,
        child_whose_output_comes_seldom, lines_sent_to_a_child_that_thinks, lock_on_a_file_of_a_slow_writer,
        timer_as_a_descriptor, condition_of_a_reader_of_slow_data,
    )
}  # fmt: skip
