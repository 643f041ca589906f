"""Programs that hang as applications do; the watcher was developed with these."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import tempfile
import threading
import time
from multiprocessing.managers import AcquirerProxy, SyncManager

import torch
from torch.utils.data import DataLoader, Dataset


def crawler_waits_for_its_own_task() -> None:
    class Crawler:
        def __init__(self) -> None:
            self.pages: dict[str, asyncio.Task[list[str]]] = {}

        def page(self, name: str) -> asyncio.Task[list[str]]:
            if name not in self.pages:
                self.pages[name] = asyncio.create_task(self.fetch(name))
            return self.pages[name]

        async def fetch(self, name: str) -> list[str]:
            await asyncio.sleep(0.1)
            links = {"index": ["news"], "news": ["archive"], "archive": ["index"]}[name]
            found = [await self.page(link) for link in links]
            return [name, *(page for pages in found for page in pages)]

    async def main() -> None:
        await Crawler().page("index")

    asyncio.run(main())


def gather_of_two_locks() -> None:
    async def transfer(first: asyncio.Lock, second: asyncio.Lock) -> None:
        async with first:
            await asyncio.sleep(0.1)
            async with second:
                pass

    async def main() -> None:
        one, other = asyncio.Lock(), asyncio.Lock()
        await asyncio.gather(transfer(one, other), transfer(other, one))

    asyncio.run(main())


def coroutine_sleeps_for_a_flag() -> None:
    class Loader:
        ready = False

        async def load(self) -> None:
            raise FileNotFoundError("weights.pt")

        async def serve(self) -> None:
            task = asyncio.create_task(self.load())
            while not self.ready:
                await asyncio.sleep(0.5)
            await task

    asyncio.run(Loader().serve())


def coroutine_locks_beside_a_heartbeat() -> None:
    """Two requests hold each other's locks; the server goes on with its heartbeats."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(1)

    async def swap(accounts: list[asyncio.Lock], source: int, target: int) -> None:
        async with accounts[source]:
            await asyncio.sleep(0.2)
            async with accounts[target]:
                await asyncio.sleep(0.2)

    async def main() -> None:
        accounts = [asyncio.Lock() for _ in range(3)]
        beats = asyncio.create_task(beat())
        await asyncio.gather(*(swap(accounts, at, (at + 1) % 3) for at in range(3)))
        beats.cancel()

    asyncio.run(main())


def tasks_that_await_each_other() -> None:
    async def main() -> None:
        tasks: dict[str, asyncio.Task[None]] = {}

        async def step(name: str, other: str) -> None:
            await asyncio.sleep(0.1)
            await tasks[other]

        tasks["left"] = asyncio.create_task(step("left", "right"))
        tasks["right"] = asyncio.create_task(step("right", "left"))
        done = asyncio.create_task(asyncio.wait(tasks.values()))
        while not done.done():
            await asyncio.wait([done], timeout=1)

    asyncio.run(main())


def die_inside(semaphore: multiprocessing.synchronize.Semaphore) -> None:
    semaphore.acquire()
    os._exit(9)


def shared_memory_semaphore_lost() -> None:
    """A process takes the only slot of the accelerator and is killed for its memory."""
    slots = multiprocessing.Semaphore(1)
    child = multiprocessing.Process(target=die_inside, args=(slots,))
    child.start()
    child.join()
    with slots:
        pass


def lock_both(first: str, second: str) -> None:
    with open(first, "w") as one:
        fcntl.lockf(one, fcntl.LOCK_EX)
        time.sleep(0.5)
        with open(second, "w") as other:
            while True:
                try:
                    fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.5)


def fcntl_lockf_two_files() -> None:
    folder = tempfile.mkdtemp()
    names = [os.path.join(folder, name) for name in ("vocabulary", "merges")]
    children = [multiprocessing.Process(target=lock_both, args=pair) for pair in (names, names[::-1])]
    for child in children:
        child.start()
    for child in children:
        child.join()


def timer_cancels_its_waiter() -> None:
    done = threading.Event()

    def expire() -> None:
        if not done.is_set():
            raise TimeoutError("the watchdog of the step has expired")
        done.set()

    timer = threading.Timer(1, expire)
    timer.start()
    done.wait()


def die_with(lock: AcquirerProxy) -> None:
    lock.acquire()
    os._exit(1)


def multiprocessing_manager_lock_of_a_dead_worker() -> None:
    with SyncManager() as manager:
        lock = manager.Lock()
        child = multiprocessing.Process(target=die_with, args=(lock,))
        child.start()
        child.join()
        with lock:
            pass


def meet(barrier: multiprocessing.synchronize.Barrier, number: int) -> None:
    for step in range(10):
        if number == 1 and step == 3:
            raise SystemExit(0)
        barrier.wait()


def barrier_broken_worker_dies() -> None:
    barrier = multiprocessing.Barrier(3)
    workers = [multiprocessing.Process(target=meet, args=(barrier, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class Rows(Dataset[torch.Tensor]):
    """Ten rows."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


def dataloader_with_a_lock_in_collate() -> None:
    """The statistics' lock is held while the batch asks for the next one."""
    lock = threading.Lock()
    seen: list[float] = []

    def collate(rows: list[torch.Tensor]) -> torch.Tensor:
        with lock:
            seen.append(float(rows[0].sum()))
        return torch.stack(rows)

    batches = iter(DataLoader(Rows(), batch_size=2, collate_fn=collate))
    with lock:
        next(batches)


PROGRAMS = {
    each.__name__: each
    for each in (
        crawler_waits_for_its_own_task, gather_of_two_locks, coroutine_sleeps_for_a_flag,
        coroutine_locks_beside_a_heartbeat, tasks_that_await_each_other, shared_memory_semaphore_lost,
        fcntl_lockf_two_files, timer_cancels_its_waiter, multiprocessing_manager_lock_of_a_dead_worker,
        barrier_broken_worker_dies, dataloader_with_a_lock_in_collate,
    )
}  # fmt: skip
