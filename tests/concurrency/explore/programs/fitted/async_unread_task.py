"""A task in the background raises, and no one awaits it."""

import asyncio
import sys

REPAIRED = "repaired" in sys.argv


async def refresh(state):
    await asyncio.sleep(0.1)
    if "token" not in state and not REPAIRED:
        raise KeyError("token")
    state["token"] = 1


async def main():
    state = {}
    task = asyncio.create_task(refresh(state))
    await asyncio.sleep(1)
    assert task.done()


asyncio.run(main())
