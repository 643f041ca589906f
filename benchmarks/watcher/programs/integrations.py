"""Programs of several parts that hang; to develop with."""

from __future__ import annotations

import asyncio
import multiprocessing


def managed_queues_full_on_both_sides() -> None:
    manager = multiprocessing.Manager()
    queues = [manager.Queue(2) for _ in range(2)]

    def run(own: int) -> None:
        for number in range(10):
            queues[1 - own].put(number)
        for _ in range(10):
            queues[own].get()

    workers = [multiprocessing.Process(target=run, args=(own,)) for own in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def event_set_after_the_group_of_tasks() -> None:
    async def main() -> None:
        finished = asyncio.Event()

        async def heartbeat() -> None:
            await finished.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(heartbeat())
            await asyncio.sleep(0.1)
        finished.set()

    asyncio.run(main())


PROGRAMS = {
    each.__name__: each
    for each in (
        managed_queues_full_on_both_sides, event_set_after_the_group_of_tasks,
    )
}  # fmt: skip
