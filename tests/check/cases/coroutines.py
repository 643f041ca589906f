# Each case stands between lines `# === name`; a line that must be found ends in `# found: CODE`, and nothing else may be.
# === a thread's lock held over an await
import threading


class Client:
    def __init__(self):
        self._lock = threading.Lock()

    async def get(self, url):
        with self._lock:
            return await self.fetch(url)  # found: PC302

    async def fetch(self, url):
        return url


# === asyncio's own lock held over an await
import asyncio


class Client:
    def __init__(self):
        self._lock = asyncio.Lock()

    async def get(self, url):
        async with self._lock:
            return await self.fetch(url)

    async def fetch(self, url):
        return url


# === asyncio's lock taken again
import asyncio


class Client:
    def __init__(self):
        self._lock = asyncio.Lock()

    async def get(self, url):
        async with self._lock:
            return await self.fetch(url)  # found: PC103

    async def fetch(self, url):
        async with self._lock:
            return url


# === a blocking acquire with an await before the release
import threading

lock = threading.Lock()


async def f(x):
    lock.acquire()
    try:
        await x.work()  # found: PC302
    finally:
        lock.release()


# === a future of an executor waited for in a coroutine
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor()


async def f(work):
    return pool.submit(work).result()  # found: PC301


# === handed to a thread
import asyncio
import queue

items = queue.Queue()


async def f():
    return await asyncio.to_thread(items.get)


# === the loop's own bridge, one call away
import asyncio


def run(coroutine):
    return asyncio.get_event_loop().run_until_complete(coroutine)


async def f(g):
    return run(g())  # found: PC303


# === a callback put into the loop from a thread
import asyncio
import threading


class Feed:
    def __init__(self, loop):
        self.loop = loop
        threading.Thread(target=self.read).start()

    def read(self):
        self.loop.call_soon(print, 1)  # found: PC304


# === made at first use, by one task at a time
import asyncio


class Client:
    def __init__(self):
        self._lock = asyncio.Lock()
        self._session = None

    async def session(self):
        if self._session is None:
            async with self._lock:
                if self._session is None:
                    self._session = await self.open()
        return self._session

    async def open(self):
        return object()
