"""A consumer with a deadline: the item that arrives as the time runs out is lost."""

import asyncio
import sys

REPAIRED = "repaired" in sys.argv


async def take(items):
    item = await items.get()
    await asyncio.sleep(0.05)  # decode it
    return item


async def main():
    items, taken = asyncio.Queue(), []

    async def produce():
        await asyncio.sleep(0.08)
        items.put_nowait("a")
        items.put_nowait(None)

    producer = asyncio.create_task(produce())
    while True:
        try:
            if REPAIRED:
                item = await items.get()
            else:
                item = await asyncio.wait_for(take(items), 0.1)
        except asyncio.TimeoutError:
            continue
        if item is None:
            break
        taken.append(item)
    await producer
    assert taken == ["a"], taken


asyncio.run(main())
