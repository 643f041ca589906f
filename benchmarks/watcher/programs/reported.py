"""Hangs that users of PyTorch reported in public, each rebuilt as a small program of one process and its children.

Each function names its issue. What a library did then (a mutex of a thread pool, held while the process forks) is done
here by the program itself where PyTorch has repaired it since.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

MUTEX = ctypes.create_string_buffer(64)
LOCK = threading.Lock()


def mp() -> Any:
    import torch.multiprocessing
    import torch.utils.data

    return torch.multiprocessing


def hold_mutex(seconds: float) -> None:
    """Hold a mutex of C in another thread, as a thread pool of a library does while it starts."""
    held = threading.Event()

    def run() -> None:
        ctypes.CDLL(None).pthread_mutex_lock(MUTEX)
        held.set()
        time.sleep(seconds)
        ctypes.CDLL(None).pthread_mutex_unlock(MUTEX)

    threading.Thread(target=run).start()
    held.wait()


class NeedsMutex:
    """A data set whose samples need the mutex."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        ctypes.CDLL(None).pthread_mutex_lock(MUTEX)
        ctypes.CDLL(None).pthread_mutex_unlock(MUTEX)
        return index


class NeedsLock(NeedsMutex):
    """A data set whose samples need the lock."""

    def __getitem__(self, index: int) -> int:
        with LOCK:
            return index


def load(data: Any) -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(data, batch_size=4, num_workers=2):
        pass


def pytorch_75147() -> None:
    """A worker of a data loader inherits a mutex that a thread of the parent holds."""
    mp()
    hold_mutex(8)
    load(NeedsMutex())


def pytorch_130610() -> None:
    """The thread that pins memory takes a lock while another data loader forks."""

    def pin() -> None:
        with LOCK:
            time.sleep(8)

    mp()
    threading.Thread(target=pin).start()
    time.sleep(0.1)
    load(NeedsLock())


def trains(_: int) -> int:
    with LOCK:
        return 0


def pytorch_2245() -> None:
    """The start method fork, and a lock that a thread holds: the pool's tasks never end."""

    def run() -> None:
        with LOCK:
            time.sleep(4)

    mp()
    threading.Thread(target=run).start()
    time.sleep(0.1)
    with mp().get_context("fork").Pool(1) as pool:
        pool.map(trains, [0])


def pytorch_3619() -> None:
    """As before, with a main thread that asks every second whether all results are there."""

    def run() -> None:
        with LOCK:
            time.sleep(4)

    mp()
    threading.Thread(target=run).start()
    time.sleep(0.1)
    with mp().get_context("fork").Pool(2) as pool:
        results = [pool.apply_async(trains, (number,)) for number in range(2)]
        while not all(result.ready() for result in results):
            time.sleep(1)


def puts_and_waits(number: int, items: Any, event: Any) -> None:
    if number:  # the first one's tensor is lost
        items.put(number)
    event.wait()


def pytorch_32299() -> None:
    """Workers put one item each and wait for an event; one item never arrives."""
    context = mp().get_context("fork")
    items, event = context.Queue(), context.Event()
    workers = [context.Process(target=puts_and_waits, args=(number, items, event)) for number in range(4)]
    for worker in workers:
        worker.start()
    for _ in workers:
        items.get()
    event.set()


def pytorch_32322() -> None:
    """The same with processes that are spawned."""
    context = mp().get_context("spawn")
    items, event = context.Queue(), context.Event()
    started = mp().spawn(puts_and_waits, nprocs=2, args=(items, event), join=False)
    for _ in range(2):
        items.get()
    event.set()
    started.join()


def fails(items: Any) -> None:
    raise SystemExit(1)


def pytorch_35660() -> None:
    """The consumer waits for a producer that has ended."""
    context = mp().get_context("spawn")
    items = context.Queue()
    worker = context.Process(target=fails, args=(items,))
    worker.start()
    worker.join()
    items.get()


def pytorch_110594() -> None:
    """Nothing is ever put into the queue."""
    mp().get_context("spawn").Queue().get()


def multiplies() -> None:
    import torch

    x = torch.ones(400, 400)
    for _ in range(3):
        x = x @ x


def forks_after(first: Any, second: Any) -> None:
    """Do something with several threads of OpenMP, and something else in a forked child."""
    import torch

    torch.set_num_threads(4)
    first()
    child = mp().get_context("fork").Process(target=second)
    child.start()
    child.join()


def adds() -> None:
    import torch

    (torch.zeros(3000, 3000) + 1).sum()


def pytorch_17199() -> None:
    """A product of matrices before a fork, and one in the child."""
    forks_after(multiplies, multiplies)


def pytorch_41197() -> None:
    """Zeros before a fork, and in the child."""
    forks_after(adds, adds)


def goes_back() -> None:
    import torch

    x = torch.randn(300, 300, requires_grad=True)
    (x @ x).sigmoid().sum().backward()


def pytorch_91547() -> None:
    """A backward pass in a forked child, after one in the parent."""
    forks_after(goes_back, goes_back)


def fills(items: Any) -> None:
    for _ in range(100):
        items.put(b"x" * 100_000)


def translate_285() -> None:
    """The parent joins children before it has taken all that they put into the queue."""
    context = mp().get_context("fork")
    items = context.Queue()
    worker = context.Process(target=fills, args=(items,))
    worker.start()
    worker.join()
    items.get()


PROGRAMS = {
    each.__name__: each
    for each in (
        pytorch_75147, pytorch_130610, pytorch_2245, pytorch_3619, pytorch_32299, pytorch_32322, pytorch_35660,
        pytorch_110594, pytorch_17199, pytorch_41197, pytorch_91547, translate_285,
    )
}  # fmt: skip
