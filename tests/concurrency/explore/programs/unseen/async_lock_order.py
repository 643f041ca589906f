"""Two tasks that take two locks of asyncio in opposite orders, one of them after an answer that takes time."""

import asyncio
import sys

REPAIRED = "repaired" in sys.argv


async def copy(first, second, delay):
    await asyncio.sleep(delay)
    async with first:
        await asyncio.sleep(0.01)
        async with second:
            await asyncio.sleep(0)


async def main():
    rows, index = asyncio.Lock(), asyncio.Lock()
    one = (rows, index)
    other = one if REPAIRED else (index, rows)
    await asyncio.gather(copy(*one, 0), copy(*other, 0.02))


asyncio.run(main())
