"""Programs that hang as applications do; none of them had been run before the watcher was judged by them."""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def lock_taken_twice_by_a_coroutine() -> None:
    class Session:
        def __init__(self) -> None:
            self.lock = asyncio.Lock()
            self.token = ""

        async def refresh(self) -> None:
            async with self.lock:
                self.token = "new"

        async def get(self) -> str:
            async with self.lock:
                if not self.token:
                    await self.refresh()
                return self.token

    async def main() -> None:
        session = Session()
        await asyncio.gather(*(session.get() for _ in range(3)))

    asyncio.run(main())


def queue_join_without_task_done() -> None:
    async def work(items: asyncio.Queue[int]) -> None:
        while True:
            item = await items.get()
            if item % 5 == 4:
                continue
            items.task_done()

    async def main() -> None:
        items: asyncio.Queue[int] = asyncio.Queue()
        workers = [asyncio.create_task(work(items)) for _ in range(3)]
        for item in range(20):
            items.put_nowait(item)
        await items.join()
        for worker in workers:
            worker.cancel()

    asyncio.run(main())


def semaphore_of_one_and_a_recursive_call() -> None:
    async def walk(folder: int, slots: asyncio.Semaphore) -> int:
        async with slots:
            await asyncio.sleep(0.05)
            if folder == 0:
                return 1
            return sum(await asyncio.gather(*(walk(folder - 1, slots) for _ in range(2))))

    async def main() -> None:
        await walk(3, asyncio.Semaphore(2))

    asyncio.run(main())


def event_set_by_a_cancelled_task() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def start() -> None:
            await asyncio.sleep(0.2)
            started.set()

        async def ping() -> None:
            while True:
                await asyncio.sleep(2)

        task, pings = asyncio.create_task(start()), asyncio.create_task(ping())
        await asyncio.sleep(0.1)
        task.cancel()
        await started.wait()
        pings.cancel()

    asyncio.run(main())


def run_in_executor_waits_for_the_loop() -> None:
    async def answer() -> int:
        return 42

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, lambda: asyncio.run_coroutine_threadsafe(answer(), loop).result())
        while not future.done():
            time.sleep(0.1)

    asyncio.run(main())


def producer_and_consumer_of_full_queues() -> None:
    async def relay(source: asyncio.Queue[int], target: asyncio.Queue[int]) -> None:
        while True:
            item = await source.get()
            await target.put(item)
            await target.put(item + 1)

    async def main() -> None:
        there: asyncio.Queue[int] = asyncio.Queue(4)
        back: asyncio.Queue[int] = asyncio.Queue(4)
        there.put_nowait(0)
        await asyncio.gather(relay(there, back), relay(back, there))

    asyncio.run(main())


def barrier_with_one_too_few() -> None:
    def train(number: int, barrier: threading.Barrier) -> None:
        for epoch in range(3 if number else 2):
            time.sleep(0.05 * epoch)
            barrier.wait()

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=train, args=(number, barrier)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def condition_without_notify() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.condition = threading.Condition()
            self.items: collections.deque[int] = collections.deque()

        def produce(self) -> None:
            for item in range(5):
                with self.condition:
                    self.items.append(item)
                    if len(self.items) == 1 and item == 0:
                        self.condition.notify()

        def consume(self) -> None:
            for _ in range(6):
                with self.condition:
                    while not self.items:
                        self.condition.wait()
                    self.items.popleft()

    pipeline = Pipeline()
    threads = [threading.Thread(target=each) for each in (pipeline.consume, pipeline.produce)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def logger_lock_in_a_signal_handler() -> None:
    statistics = threading.Lock()

    def show(*_: object) -> None:
        with statistics:
            logging.getLogger().info("shown")

    signal.signal(signal.SIGALRM, show)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with statistics:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            sum(range(1000))


def cache_computes_itself() -> None:
    class Cache:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.values: dict[int, int] = {}

        def get(self, key: int) -> int:
            with self.lock:
                if key not in self.values:
                    self.values[key] = 1 if key < 2 else self.get(key - 1) + self.get(key - 2)
                return self.values[key]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Cache().get, [10, 11]))


def pool_submits_to_itself() -> None:
    pool = ThreadPoolExecutor(4)

    def count(depth: int) -> int:
        if depth == 0:
            time.sleep(0.05)
            return 1
        return sum(each.result() for each in [pool.submit(count, depth - 1) for _ in range(3)])

    count(4)


def pipe_both_write_first() -> None:
    def exchange(connection: multiprocessing.connection.Connection) -> None:
        connection.send_bytes(bytes(10_000_000))
        connection.recv_bytes()

    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=exchange, args=(theirs,))
    child.start()
    exchange(ours)
    child.join()


def popen_stderr_fills() -> None:
    program = "import sys; [print('warning: deprecated', file=sys.stderr) for _ in range(20000)]; print('done')"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()


def fifo_opened_for_reading_by_both() -> None:
    fifo = Path(tempfile.mkdtemp()) / "commands"
    os.mkfifo(fifo)
    child = os.fork()
    if child == 0:
        fifo.read_bytes()
        os._exit(0)
    fifo.read_bytes()
    os.waitpid(child, 0)


def socket_both_receive_first() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        hello = connection.recv(5)
        connection.sendall(hello)

    threading.Thread(target=serve).start()
    with socket.create_connection(server.getsockname()) as client:
        client.recv(5)


def lru_cache_with_rlock_in_two_threads() -> None:
    models, devices = threading.RLock(), threading.RLock()

    @functools.lru_cache
    def load(name: str) -> str:
        with models:
            time.sleep(0.2)
            return place(name)

    def place(name: str) -> str:
        with devices:
            return name + "@0"

    def evict() -> None:
        with devices:
            time.sleep(0.2)
            with models:
                load.cache_clear()

    threads = [threading.Thread(target=load, args=("bert",)), threading.Thread(target=evict)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)


def put_rows(rows: multiprocessing.queues.Queue[bytes]) -> None:
    for _ in range(100):
        rows.put(bytes(100_000))


def queue_feeder_never_joined() -> None:
    rows: multiprocessing.queues.Queue[bytes] = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=put_rows, args=(rows,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(50):
        rows.get()
    for worker in workers:
        worker.join()


def reader_writer_lock_upgrade() -> None:
    class ReadWrite:
        def __init__(self) -> None:
            self.changed = threading.Condition()
            self.readers = 0

        @contextmanager
        def reading(self) -> Iterator[None]:
            with self.changed:
                self.readers += 1
            yield
            with self.changed:
                self.readers -= 1
                self.changed.notify_all()

        @contextmanager
        def writing(self) -> Iterator[None]:
            with self.changed:
                while self.readers:
                    self.changed.wait()
                yield

    lock = ReadWrite()

    def update() -> None:
        with lock.reading():
            time.sleep(0.2)
            with lock.writing():
                pass

    threads = [threading.Thread(target=update) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def take_both(first: Path, second: Path) -> None:
    with FileLock(first):
        time.sleep(0.5)
        with FileLock(second):
            pass


def filelock_two_files_two_processes() -> None:
    folder = Path(tempfile.mkdtemp())
    names = folder / "datasets.lock", folder / "models.lock"
    children = [multiprocessing.Process(target=take_both, args=pair) for pair in (names, names[::-1])]
    for child in children:
        child.start()
    for child in children:
        child.join()


def thread_local_connection_pool_exhausted() -> None:
    class Pool:
        def __init__(self, size: int) -> None:
            self.free: queue.Queue[int] = queue.Queue()
            for number in range(size):
                self.free.put(number)

        @contextmanager
        def connection(self) -> Iterator[int]:
            number = self.free.get()
            yield number
            self.free.put(number)

    pool = Pool(2)

    def request() -> None:
        with pool.connection():
            time.sleep(0.2)
            with pool.connection():
                pass

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: request(), range(2)))


def grpc_like_client_in_its_own_handler() -> None:
    """A server with one handler calls itself while it handles."""
    server = socket.create_server(("127.0.0.1", 0))

    def call(text: bytes) -> bytes:
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(text)
            return client.recv(100)

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(100)
                connection.sendall(call(b"version") if asked == b"status" else b"1.0")

    threading.Thread(target=serve, daemon=True).start()
    call(b"status")


PROGRAMS = {
    each.__name__: each
    for each in (
        lock_taken_twice_by_a_coroutine, queue_join_without_task_done, semaphore_of_one_and_a_recursive_call,
        event_set_by_a_cancelled_task, run_in_executor_waits_for_the_loop, producer_and_consumer_of_full_queues,
        barrier_with_one_too_few, condition_without_notify, logger_lock_in_a_signal_handler, cache_computes_itself,
        pool_submits_to_itself, pipe_both_write_first, popen_stderr_fills, fifo_opened_for_reading_by_both,
        socket_both_receive_first, lru_cache_with_rlock_in_two_threads,
        queue_feeder_never_joined, reader_writer_lock_upgrade,
        filelock_two_files_two_processes,
        thread_local_connection_pool_exhausted, grpc_like_client_in_its_own_handler,
    )
}  # fmt: skip
