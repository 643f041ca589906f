"""A balance is read, something is awaited, and the balance is written."""

import asyncio
import sys

REPAIRED = "repaired" in sys.argv


class Account:
    def __init__(self):
        self.balance = 100
        self.lock = asyncio.Lock()

    async def withdraw(self, amount):
        if REPAIRED:
            async with self.lock:
                await self._withdraw(amount)
        else:
            await self._withdraw(amount)

    async def _withdraw(self, amount):
        balance = self.balance
        await asyncio.sleep(0.01)
        self.balance = balance - amount


async def main():
    account = Account()
    await asyncio.gather(account.withdraw(10), account.withdraw(20))
    assert account.balance == 70, account.balance


asyncio.run(main())
