"""A thread hands results to a loop: call_soon is not for other threads, so the loop may not wake."""

import asyncio
import sys
import threading

REPAIRED = "repaired" in sys.argv


async def main():
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def compute():
        if REPAIRED:
            loop.call_soon_threadsafe(answer.set_result, 42)
        else:
            asyncio.run_coroutine_threadsafe(wait_for_it(), loop).result()
            loop.call_soon_threadsafe(answer.set_result, 42)

    async def wait_for_it():
        return await answer

    thread = threading.Thread(target=compute)
    thread.start()
    assert await answer == 42
    thread.join()


asyncio.run(main())
