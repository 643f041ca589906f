"""Servers and clients on the loopback interface with little to say to each other; to develop with."""

from __future__ import annotations

from programs.parts import python


def broker_with_a_slow_worker() -> None:
    """A request over ZeroMQ whose answer takes long, and a subscriber to whom little is published."""
    python(
        """
        import threading, time, zmq
        context = zmq.Context()
        server = context.socket(zmq.REP)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        news = context.socket(zmq.PUB)
        other = news.bind_to_random_port("tcp://127.0.0.1")

        def work():
            while True:
                job = server.recv()
                time.sleep(33)
                news.send(b"done")
                server.send(job)

        def read():
            reader = context.socket(zmq.SUB)
            reader.connect(f"tcp://127.0.0.1:{other}")
            reader.subscribe(b"")
            while True:
                reader.recv()

        threading.Thread(target=work).start()
        threading.Thread(target=read).start()
        client = context.socket(zmq.REQ)
        client.connect(f"tcp://127.0.0.1:{port}")
        while True:
            client.send(b"job")
            client.recv()
        """
    )


def long_poll() -> None:
    python(
        """
        import asyncio, aiohttp
        from aiohttp import web

        async def main():
            async def changes(request):
                await asyncio.sleep(50)
                return web.json_response([])
            app = web.Application()
            app.router.add_get("/", changes)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]
            async with aiohttp.ClientSession() as session:
                while True:
                    async with session.get(f"http://127.0.0.1:{port}/") as answer:
                        await answer.json()

        asyncio.run(main())
        """
    )


def body_that_drips() -> None:
    python(
        """
        import http.client, threading, time
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        class Slow(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                while True:
                    self.wfile.write(b"x")
                    time.sleep(22)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        threading.Thread(target=server.serve_forever).start()
        client = http.client.HTTPConnection("127.0.0.1", server.server_port)
        client.request("GET", "/")
        client.getresponse().read()
        """
    )


def server_of_tornado() -> None:
    python(
        """
        import asyncio, tornado.web

        async def main():
            tornado.web.Application([]).listen(0, "127.0.0.1")
            await asyncio.Event().wait()

        asyncio.run(main())
        """
    )


def kept_alive_for_the_next_request() -> None:
    python(
        """
        import requests, threading, time
        from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
        SimpleHTTPRequestHandler.protocol_version = "HTTP/1.1"
        server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
        threading.Thread(target=server.serve_forever).start()
        session = requests.Session()
        while True:
            session.head(f"http://127.0.0.1:{server.server_port}/")
            time.sleep(42)
        """
    )


def datagrams_that_come_seldom() -> None:
    python(
        """
        import socket, threading, time
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind(("127.0.0.1", 0))
        def beat():
            while True:
                time.sleep(31)
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", there.getsockname())
        threading.Thread(target=beat).start()
        while True:
            there.recv(10)
        """
    )


def events_sent_to_a_browser() -> None:
    python(
        """
        import asyncio, httpx, uvicorn, threading, time

        async def app(scope, receive, send):
            if scope["type"] != "http":
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"data: x", "more_body": True})
                await asyncio.sleep(27)

        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        threading.Thread(target=server.run).start()
        time.sleep(3)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.stream("GET", f"http://127.0.0.1:{port}/", timeout=None) as answer:
            for _ in answer.iter_bytes(): pass
        """
    )


PROGRAMS = {
    each.__name__: each
    for each in (
        broker_with_a_slow_worker, long_poll, body_that_drips, server_of_tornado, kept_alive_for_the_next_request,
        datagrams_that_come_seldom, events_sent_to_a_browser,
    )
}  # fmt: skip
