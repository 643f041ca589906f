"""Programs whose parts wait for each other, but not for ever."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing as mp
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

FORK, SPAWN = mp.get_context("fork"), mp.get_context("spawn")


def communicates() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], stdout=subprocess.PIPE).communicate()


def waits_with_a_timeout() -> None:
    child = subprocess.Popen(["sleep", "900"])
    while True:
        try:
            child.wait(2)
            return
        except subprocess.TimeoutExpired:
            pass


def follows_a_file() -> None:
    subprocess.run(["tail", "-f", tempfile.mkstemp()[1]])


def pipeline_of_the_shell() -> None:
    subprocess.run("(while :; do sleep 8; echo x; done) | cat | wc -l", shell=True)


def executor_of_subprocesses() -> None:
    async def main() -> None:
        child = await asyncio.create_subprocess_exec("sleep", "900", stdout=asyncio.subprocess.PIPE)
        await child.communicate()

    asyncio.run(main())


def pool_of_spawned() -> None:
    with SPAWN.Pool(2) as pool:
        pool.map(time.sleep, [1, 900])


def executor_idles() -> None:
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        pool.submit(int).result()
        time.sleep(900)


def computes(lock: Any, held: Any) -> None:
    with lock:
        held.set()
        while True:
            sum(range(100_000))


def lock_of_a_busy_process() -> None:
    lock, held = SPAWN.Lock(), SPAWN.Event()
    child = SPAWN.Process(target=computes, args=(lock, held))
    child.start()
    held.wait()
    with lock:
        child.join()


def file_lock_of_a_busy_process() -> None:
    name = tempfile.mkstemp()[1]
    if os.fork() == 0:
        with open(name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            while True:
                sum(range(100_000))
    time.sleep(0.5)
    with open(name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def database_of_a_slow_writer() -> None:
    name = tempfile.mkstemp()[1]
    sqlite3.connect(name).execute("create table t (x)")
    if os.fork() == 0:
        sqlite3.connect(name, isolation_level=None).execute("begin exclusive")
        connection = sqlite3.connect(":memory:")
        query = "with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) from c"
        keep = sqlite3.connect(name, isolation_level=None)
        keep.execute("begin immediate")
        connection.execute(query)
    time.sleep(0.5)
    sqlite3.connect(name, timeout=900).execute("insert into t values (1)")


def barrier_of_a_slow_one() -> None:
    barrier = FORK.Barrier(3)

    def run(seconds: float) -> None:
        time.sleep(seconds)
        barrier.wait()

    for seconds in (0, 1, 900):
        FORK.Process(target=run, args=(seconds,)).start()


def thread_pool_of_slow_calls() -> None:
    done = threading.Barrier(4)
    for number in range(3):
        threading.Thread(target=lambda n=number: (time.sleep(300 * n), done.wait())).start()
    done.wait()


PROGRAMS = {
    each.__name__: each
    for each in (
        communicates, waits_with_a_timeout, follows_a_file, pipeline_of_the_shell, executor_of_subprocesses,
        pool_of_spawned, executor_idles, lock_of_a_busy_process, file_lock_of_a_busy_process, database_of_a_slow_writer,
        barrier_of_a_slow_one, thread_pool_of_slow_calls,
    )
}  # fmt: skip
