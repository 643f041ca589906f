"""A client that connects lazily, with an await between the test and the assignment."""

import asyncio
import sys

REPAIRED = "repaired" in sys.argv


class Client:
    def __init__(self):
        self.connection = None
        self.opened = 0
        self.lock = asyncio.Lock()

    async def connect(self):
        if self.connection is None:
            self.opened += 1
            await asyncio.sleep(0.1)
            self.connection = object()

    async def get(self):
        if REPAIRED:
            async with self.lock:
                await self.connect()
        else:
            await self.connect()
        return self.connection


async def main():
    client = Client()
    await asyncio.gather(*(client.get() for _ in range(3)))
    assert client.opened == 1, f"{client.opened} connections"


if __name__ == "__main__":
    asyncio.run(main())
