"""Programs of coroutines, pipes and locks that wait as applications do and do not hang; run only to judge."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import tempfile
import threading
import time
from pathlib import Path

from filelock import FileLock


def chat_server_with_silent_guests() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        guests = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await server.serve_forever()
        assert guests

    asyncio.run(main())


def service_that_ends_by_a_signal() -> None:
    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()

    asyncio.run(main())


def rate_limited_requests() -> None:
    async def main() -> None:
        slots = asyncio.Semaphore(2)

        async def request() -> None:
            async with slots:
                await asyncio.sleep(40)

        await asyncio.gather(*(request() for _ in range(20)))

    asyncio.run(main())


def stage_waits_for_a_slow_stage() -> None:
    async def main() -> None:
        rows: asyncio.Queue[int] = asyncio.Queue(2)

        async def write() -> None:
            while True:
                await rows.get()
                await asyncio.to_thread(time.sleep, 30)

        writer = asyncio.create_task(write())
        for row in range(1000):
            await rows.put(row)
        await writer

    asyncio.run(main())


def condition_notified_once_a_minute() -> None:
    async def main() -> None:
        changed = asyncio.Condition()

        async def watch() -> None:
            while True:
                async with changed:
                    await changed.wait()

        watchers = [asyncio.create_task(watch()) for _ in range(3)]
        loop = asyncio.get_running_loop()
        for _ in range(100):
            await loop.run_in_executor(None, time.sleep, 60)
            async with changed:
                changed.notify_all()
        assert watchers

    asyncio.run(main())


def reader_of_a_named_pipe_with_a_slow_writer() -> None:
    fifo = Path(tempfile.mkdtemp()) / "rows"
    os.mkfifo(fifo)
    if os.fork() == 0:
        time.sleep(600)
        fifo.write_text("row")
        os._exit(0)
    fifo.read_text()


def threads_that_serve_a_queue() -> None:
    items: queue.Queue[int] = queue.Queue()
    for _ in range(3):
        threading.Thread(target=lambda: [items.get() for _ in range(100)], daemon=True).start()
    while True:
        time.sleep(15)
        items.put(1)


def two_builds_of_one_cache() -> None:
    folder = Path(tempfile.mkdtemp())
    for _ in range(2):
        if os.fork() == 0:
            with FileLock(folder / "kernels.lock"):
                os.system("sleep 300")
            os._exit(0)
    os.wait()


PROGRAMS = {
    each.__name__: each
    for each in (
        chat_server_with_silent_guests, service_that_ends_by_a_signal, rate_limited_requests,
        stage_waits_for_a_slow_stage, condition_notified_once_a_minute, reader_of_a_named_pipe_with_a_slow_writer,
        threads_that_serve_a_queue, two_builds_of_one_cache,
    )
}  # fmt: skip
