"""Programs that ask again and again, by a clock, for what will come in the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request


def progress_of_threads() -> None:
    def work() -> None:
        for _ in range(100):
            time.sleep(6)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        print("working", flush=True)
        time.sleep(1)


def waits_for_a_file() -> None:
    file = os.path.join(tempfile.mkdtemp(), "ready")
    while not os.path.exists(file):
        time.sleep(0.5)


def asks_a_web_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]):
        time.sleep(3)
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                if answer.read() == b"done":
                    break
            time.sleep(1)


def datagrams_with_a_timeout() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.5)
        while True:
            try:
                data = server.recv(100)
            except TimeoutError:
                continue
            print(data)


def lock_until_a_deadline() -> None:
    lock = threading.Lock()
    lock.acquire()
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if lock.acquire(timeout=0.5):
            break


def ticks_until_a_signal() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(0.5):
        pass


PROGRAMS = {
    each.__name__: each
    for each in (
        progress_of_threads, waits_for_a_file, asks_a_web_server, datagrams_with_a_timeout, lock_until_a_deadline,
        ticks_until_a_signal,
    )
}  # fmt: skip
