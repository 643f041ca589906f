"""Programs of several parts that wait and do not hang; to develop with."""

from __future__ import annotations

import asyncio
import importlib
import socket
import socketserver
import subprocess
import threading
import time


def threads_serve_a_silent_client() -> None:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                self.wfile.write(line)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection(server.server_address) as client:
            client.sendall(b"hello\n")
            client.recv(100)
            time.sleep(300)


def pipeline_behind_a_slow_download() -> None:
    async def main() -> None:
        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(12)

        server = await asyncio.start_server(send, "127.0.0.1", 0)
        reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
        parts: asyncio.Queue[bytes] = asyncio.Queue(2)

        async def download() -> None:
            while part := await reader.read(4096):
                await parts.put(part)

        async def unpack() -> None:
            while True:
                await parts.get()

        await asyncio.gather(download(), unpack())

    asyncio.run(main())


def lock_held_over_a_long_product() -> None:
    numpy = importlib.import_module("numpy")
    lock = threading.Lock()
    matrix = numpy.random.default_rng(0).random((1200, 1200))

    def compute() -> None:
        with lock:
            product = matrix
            for _ in range(2000):
                product = product @ matrix
                product /= abs(product).max()

    for _ in range(3):
        threading.Thread(target=compute).start()


def coprocess_used_once_in_a_while() -> None:
    script = """coproc cat
    while true; do echo ping >&"${COPROC[1]}"; read -r line <&"${COPROC[0]}"; sleep 20; done"""
    subprocess.run(["bash", "-c", script], check=True)


PROGRAMS = {
    each.__name__: each
    for each in (
        threads_serve_a_silent_client, pipeline_behind_a_slow_download, lock_held_over_a_long_product,
        coprocess_used_once_in_a_while,
    )
}  # fmt: skip
