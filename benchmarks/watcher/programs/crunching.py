"""Work that is done in C, in other programs, or by fits and starts."""

from __future__ import annotations

import bz2
import gc
import hashlib
import os
import random
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


def matrices() -> None:
    import numpy as np

    a = np.random.rand(1500, 1500)
    while True:
        a = a @ a / 1500


def slow_query() -> None:
    query = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 10000000000) select sum(x) from c"
    sqlite3.connect(":memory:").execute(query)


def hashes_in_threads() -> None:
    data = os.urandom(1 << 20)
    with ThreadPoolExecutor(3) as pool:
        pool.map(lambda _: hashlib.pbkdf2_hmac("sha512", data[:64], b"salt", 100_000_000), range(3))


def backtracks() -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


def collects_garbage() -> None:
    kept = [[] for _ in range(2_000_000)]
    while kept:
        gc.collect()


def compresses_in_processes() -> None:
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(bz2.compress, [os.urandom(1 << 24)] * 8))


def compiles() -> None:
    code = (
        "import pathlib, py_compile, sysconfig\nfor f in pathlib.Path(sysconfig.get_paths()['stdlib']).rglob('*.py'):\n"
        "    compile(f.read_bytes(), str(f), 'exec') if 'lib2to3' not in str(f) and 'bad' not in f.name else 0\n"
    )
    while True:
        subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


def sorts_on_disk() -> None:
    with tempfile.TemporaryDirectory() as folder:
        while True:
            name = os.path.join(folder, "numbers")
            with open(name, "w") as file:
                file.writelines(f"{random.random()}\n" for _ in range(300_000))
            subprocess.run(["sort", name, "-o", name])


def syncs() -> None:
    with tempfile.TemporaryFile() as file:
        while True:
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
            file.seek(0)


def bursts() -> None:
    while True:
        sum(range(20_000_000))
        time.sleep(14)


def contends() -> None:
    """Threads that quarrel about one lock and the interpreter."""
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                sum(range(10_000))

    for _ in range(4):
        threading.Thread(target=run).start()


def slow_download() -> None:
    """A server that sends some bytes every nine seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            client = server.accept()[0]
            while True:
                time.sleep(9)
                client.send(b"x" * 1000)
        with socket.create_connection(server.getsockname()) as connection:
            while connection.recv(4096):
                pass


PROGRAMS = {
    each.__name__: each
    for each in (
        matrices, slow_query, hashes_in_threads, backtracks, collects_garbage, compresses_in_processes, compiles,
        sorts_on_disk, syncs, bursts, contends, slow_download,
    )
}  # fmt: skip
