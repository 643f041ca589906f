"""Servers without a client."""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import socketserver
import tempfile
import threading


def web() -> None:
    http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler).serve_forever()


async def loop() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    await server.serve_forever()


def accepting_thread() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.accept)
    thread.start()
    thread.join()


def forked() -> None:
    """Children accept, the parent waits for their end."""
    server = socket.create_server(("127.0.0.1", 0))
    for _ in range(3):
        if os.fork() == 0:
            server.accept()
            return
    os.wait()


def unix() -> None:
    socketserver.UnixStreamServer(tempfile.mktemp(), socketserver.BaseRequestHandler).handle_request()


PROGRAMS = {
    "web": web,
    "loop": lambda: asyncio.run(loop()),
    "accepting_thread": accepting_thread,
    "forked": forked,
    "unix": unix,
}
