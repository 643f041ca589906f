"""Event loops and futures that nobody completes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading


def future_never_set() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    asyncio.run(main())


def queue_never_done() -> None:
    async def main() -> None:
        items: asyncio.Queue[int] = asyncio.Queue()
        items.put_nowait(1)

        async def take() -> None:
            while True:
                await items.get()

        task = asyncio.create_task(take())
        await items.join()
        task.cancel()

    asyncio.run(main())


def gathers_a_circle() -> None:
    async def main() -> None:
        a, b = asyncio.Lock(), asyncio.Lock()

        async def run(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(0.1)
                async with second:
                    pass

        await asyncio.gather(run(a, b), run(b, a))

    asyncio.run(main())


def coroutine_of_a_stopped_loop() -> None:
    """The loop's thread has ended; its future never has a result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()


def bare_future() -> None:
    concurrent.futures.Future[int]().result()


def waits_in_a_callback() -> None:
    """A callback runs in the pool's only thread and waits for that pool."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(threading.Event().wait, 0.5)
        first.add_done_callback(lambda _: pool.submit(int).result())
        pool.submit(int).result()


PROGRAMS = {
    "future_never_set": future_never_set,
    "queue_never_done": queue_never_done,
    "gathers_a_circle": gathers_a_circle,
    "coroutine_of_a_stopped_loop": coroutine_of_a_stopped_loop,
    "bare_future": bare_future,
    "waits_in_a_callback": waits_in_a_callback,
}
