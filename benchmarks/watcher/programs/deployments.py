"""Programs of several parts that hang; none had been run before the watcher was judged by them."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pty
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

from programs.parts import free_port


class _NotFoundError(Exception):
    def __init__(self, table: str, key: int) -> None:
        super().__init__(f"{table} has no {key}")


def _fails_with_two_arguments(key: int) -> None:
    raise _NotFoundError("orders", key)


def xmlrpc_server_calls_back() -> None:
    """Two servers with one thread each; the first one's method asks the second, which asks the first."""
    ports = [free_port() for _ in range(2)]

    def serve(own: int, other: int) -> None:
        server = SimpleXMLRPCServer(("127.0.0.1", own), logRequests=False)
        server.register_function(lambda: "1.0", "version")
        server.register_function(lambda: ServerProxy(f"http://127.0.0.1:{other}").check(), "status")
        server.register_function(lambda: ServerProxy(f"http://127.0.0.1:{other}").version(), "check")
        server.serve_forever()

    for own, other in (ports, ports[::-1]):
        multiprocessing.Process(target=serve, args=(own, other), daemon=True).start()
    time.sleep(1)
    ServerProxy(f"http://127.0.0.1:{ports[0]}").status()


def handler_fetches_from_its_own_server() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"data"
            if self.path == "/page":
                body = urlopen(f"http://127.0.0.1:{self.server.server_address[1]}/data").read()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urlopen(f"http://127.0.0.1:{server.server_address[1]}/page").read()


def services_that_ask_each_other() -> None:
    """Each of two processes answers requests on one thread, and asks the other one for each request."""
    ports = [free_port() for _ in range(2)]

    class Handler(socketserver.StreamRequestHandler):
        other = 0

        def handle(self) -> None:
            self.rfile.readline()
            with socket.create_connection(("127.0.0.1", self.other)) as peer:
                peer.sendall(b"balance?\n")
                self.wfile.write(peer.recv(100))

    def serve(own: int, other: int) -> None:
        Handler.other = other
        with socketserver.TCPServer(("127.0.0.1", own), Handler) as server:
            server.serve_forever()

    for own, other in (ports, ports[::-1]):
        multiprocessing.Process(target=serve, args=(own, other), daemon=True).start()
    time.sleep(1)
    with socket.create_connection(("127.0.0.1", ports[0])) as client:
        client.sendall(b"pay\n")
        client.recv(100)


def finalizer_takes_the_lock_of_its_registry() -> None:
    lock, alive = threading.Lock(), set()

    class Handle:
        def __init__(self, number: int) -> None:
            self.number, self.loop = number, self
            with lock:
                alive.add(number)

        def __del__(self) -> None:
            with lock:
                alive.discard(self.number)

    for number in range(100):
        Handle(number)
    with lock:
        gc.collect()
        print(len(alive))


def results_awaited_under_the_lock_of_the_workers() -> None:
    lock, done = threading.Lock(), []

    def work(number: int) -> None:
        time.sleep(0.1)
        with lock:
            done.append(number)

    with ThreadPoolExecutor(3) as pool, lock:
        list(pool.map(work, range(6)))


def producer_never_sees_that_its_reader_ended() -> None:
    """The parent keeps the reading end of the pipe, so that the producer gets no SIGPIPE."""
    producer = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    head = subprocess.Popen(["head", "-n", "3"], stdin=producer.stdout, stdout=subprocess.DEVNULL)
    head.wait()
    producer.wait()


def pool_whose_workers_die_at_their_start() -> None:
    def start() -> None:
        raise OSError("no such device")

    with multiprocessing.Pool(2, initializer=start) as pool:
        pool.map(abs, range(10))


def pool_result_that_cannot_be_unpickled() -> None:
    with multiprocessing.Pool(2) as pool:
        pool.map(_fails_with_two_arguments, range(4))


def terminal_that_is_not_read() -> None:
    child, _ = pty.fork()
    if child == 0:
        os.execvp("seq", ["seq", "1000000"])
    os.waitpid(child, 0)


def coprocess_whose_input_stays_open() -> None:
    script = 'coproc cat; echo hello >&"${COPROC[1]}"; read -r line <&"${COPROC[0]}"; echo "$line"; wait'
    subprocess.run(["bash", "-c", script], check=True)


def worker_of_node_is_never_notified() -> None:
    script = """
    const {Worker} = require('worker_threads');
    const flag = new Int32Array(new SharedArrayBuffer(4));
    new Worker('const {workerData} = require("worker_threads"); if (workerData[0] > 0) Atomics.notify(workerData, 0)',
               {eval: true, workerData: flag});
    Atomics.wait(flag, 0, 0);
    """
    subprocess.run(["node", "-e", script], check=True)


def monitors_of_java_in_two_orders() -> None:
    source = """
    public class Accounts {
      static void move(Object from, Object to) throws Exception {
        synchronized (from) { Thread.sleep(300); synchronized (to) { System.out.println("moved"); } }
      }
      public static void main(String[] words) throws Exception {
        Object a = new Object(), b = new Object();
        Thread one = new Thread(() -> { try { move(a, b); } catch (Exception e) {} });
        Thread two = new Thread(() -> { try { move(b, a); } catch (Exception e) {} });
        one.start(); two.start(); one.join(); two.join();
      }
    }
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Accounts.java"
        file.write_text(source)
        subprocess.run(["java", str(file)], check=True)


def generator_holds_the_lock_of_its_consumer() -> None:
    async def main() -> None:
        lock = asyncio.Lock()

        async def rows() -> AsyncIterator[int]:
            async with lock:
                for number in range(3):
                    yield number

        async def save(row: int) -> None:
            async with lock:
                print(row)

        async for row in rows():
            await save(row)

    asyncio.run(main())


PROGRAMS = {
    each.__name__: each
    for each in (
        xmlrpc_server_calls_back, handler_fetches_from_its_own_server, services_that_ask_each_other,
        finalizer_takes_the_lock_of_its_registry, results_awaited_under_the_lock_of_the_workers,
        producer_never_sees_that_its_reader_ended, pool_whose_workers_die_at_their_start,
        pool_result_that_cannot_be_unpickled, terminal_that_is_not_read, coprocess_whose_input_stays_open,
        worker_of_node_is_never_notified, monitors_of_java_in_two_orders, generator_holds_the_lock_of_its_consumer,
    )
}  # fmt: skip
