"""Servers and clients that have nothing to do now."""

from __future__ import annotations

import asyncio
import http.server
import multiprocessing as mp
import os
import queue
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from multiprocessing.managers import BaseManager


def http_in_threads() -> None:
    http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler).serve_forever()


def http_in_a_thread_of_main() -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    thread.join()


def asyncio_streams() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        async with server:
            await server.serve_forever()

    asyncio.run(main())


def datagrams() -> None:
    with socketserver.UDPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.socket.recv(100)


def manager() -> None:
    BaseManager(("127.0.0.1", 0)).get_server().serve_forever()


def workers_of_a_queue() -> None:
    """Threads wait for jobs that a socket brings."""
    jobs: queue.Queue[bytes] = queue.Queue()
    for _ in range(4):
        threading.Thread(target=jobs.get, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        while True:
            jobs.put(server.accept()[0].recv(10))


def preforked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(3):
            if os.fork() == 0:
                server.accept()
        os.wait()


def waits_for_a_term_signal() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=queue.Queue[int]().get, daemon=True).start()
    stop.wait()


def waits_for_input() -> None:
    """A shell of Python at a pipe that its parent, a server, may write to."""
    child = subprocess.Popen([sys.executable, "-i", "-q"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()
    child.wait()


def selects_from_children() -> None:
    ends = []
    for _ in range(3):
        read, write = os.pipe()
        if os.fork() == 0:
            while True:
                time.sleep(25)
                os.write(write, b"x")
        ends.append(read)
    while True:
        for end in select.select(ends, [], [])[0]:
            os.read(end, 1)


def process_pool_of_a_server() -> None:
    with mp.get_context("fork").Pool(3), socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()


def resumed_by_sigusr1() -> None:
    lock = threading.Lock()
    lock.acquire()
    signal.signal(signal.SIGUSR1, lambda *_: lock.release())
    event = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: event.set())
    event.wait()


PROGRAMS = {
    each.__name__: each
    for each in (
        http_in_threads, http_in_a_thread_of_main, asyncio_streams, datagrams, manager, workers_of_a_queue, preforked,
        waits_for_a_term_signal, waits_for_input, selects_from_children, process_pool_of_a_server, resumed_by_sigusr1,
    )
}  # fmt: skip
