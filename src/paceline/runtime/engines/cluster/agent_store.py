"""The store of torchrun's agent, in which rank 0 says at which port it listens: it takes any that is free.

rank 0                              torchrun's agent, at MASTER_ADDR:MASTER_PORT     every other rank
------                              --------------------------------------------     ----------------
listens; says its port -----------> keeps it --------------------------------------> asks until it is there

Nothing secret is in it, and what is read there is not trusted: the process that listens at that port
has to pass the handshake.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from paceline.errors import RunFailed
from paceline.runtime.links.tcp.address import Address

LOOK = 0.05  # seconds between two looks
CONNECTING = 10.0  # seconds until the store has answered
#: Numbers the times that the ranks of this process have met: all ranks meet equally often, as in collectives.
_MEETINGS = itertools.count()


@dataclass(frozen=True)
class AgentStore:
    """Where rank 0 says its port."""

    address: Address
    #: Distinguishes this run's ports from those of others that use the store.
    name: str

    @classmethod
    def of(cls, address: Address, meeting: bytes, environ: Mapping[str, str] = os.environ) -> AgentStore:
        """Return the store of a run; ranks that torchrun has started again begin anew."""
        return cls(address, f"paceline/{meeting.hex()}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")

    def publish(self, port: int) -> None:
        """Say that rank 0 listens at a port.

        Raises:
            RunFailed: the store cannot be reached.
        """
        key, store = self._next(), self._connected(CONNECTING)
        try:
            store.set(key, str(port))
        except RuntimeError as error:
            raise RunFailed(self._lost(error)) from error

    def port(self, rank: int, deadline: float) -> int:
        """Return the port at which rank 0 listens, as soon as it has said it.

        Raises:
            RunFailed: it has not before the deadline, or the store cannot be reached.
        """
        key, end = self._next(), time.monotonic() + deadline
        store = self._connected(min(deadline, CONNECTING))
        try:
            while not store.check([key]):
                if time.monotonic() >= end:
                    raise RunFailed(
                        f"rank {rank} waited {deadline:g} s for rank 0 to say where it listens, in the store of "
                        f"torchrun at {self.address}: look at what rank 0 printed, or give a longer timeout "
                        "(timeout=..., --timeout)"
                    )
                time.sleep(LOOK)
            return int(store.get(key))
        except RuntimeError as error:
            raise RunFailed(self._lost(error)) from error

    def _next(self) -> str:
        return f"{self.name}/{next(_MEETINGS)}"

    def _connected(self, seconds: float) -> Any:
        from torch._C._distributed_c10d import TCPStore

        try:
            return TCPStore(*self.address, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False)
        except RuntimeError as error:
            raise RunFailed(self._lost(error)) from error

    def _lost(self, error: BaseException) -> str:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return (
            f"the store of torchrun at {self.address}, where rank 0 says its port, cannot be reached: {first}. Look at "
            "what torchrun printed on the machine of rank 0, or set PACELINE_HEAD=host:port, alike for all ranks"
        )
