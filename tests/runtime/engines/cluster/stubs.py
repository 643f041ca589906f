"""Processes of servers with a hub that only takes notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.algorithms.cluster.outputs import TIMING
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.algorithms.codecs.catalogue import DENSE, parse
from paceline.algorithms.rules.gradients import Plain
from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster.servers.shard_process import ShardProcess
from paceline.runtime.engines.cluster.servers.shard_state import Pushes, ShardState
from paceline.runtime.engines.setup import set_up
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.handshake import Peer
from paceline.runtime.links.tcp.hub import Event
from paceline.training.parameters.layout import Layout

AT_DESK, AT_SERVER = Address("127.0.0.1", 1), Address("127.0.0.1", 2)


class Notes:
    """A hub that takes notes, and reports what a test says. It sends nothing before it has to."""

    def __init__(self) -> None:
        self.peers: set[Peer] = set()
        self.dialled: list[Address] = []
        self.events: list[Event] = []
        #: Who was left, and why.
        self.refused: list[tuple[Peer, str]] = []
        #: What waits to be sent: to whom, its kind, its integers, its buffers.
        self._waiting: list[tuple[Peer, int, tuple[int, ...], Sequence[Any]]] = []

    def dial(self, address: Address, seconds: float) -> None:
        self.dialled.append(address)

    def wake(self) -> None: ...

    def refuse(self, peer: Peer, why: str) -> None:
        self.refused.append((peer, why))

    def poll(self, timeout: float) -> list[Event]:
        found, self.events = self.events, []
        return found

    def post(
        self, peer: Peer, kind: int, ints: Sequence[int] = (), bodies: Sequence[Any] = (), copy: bool = True
    ) -> bool:
        kept = [bytes(each) for each in bodies] if copy else bodies
        self._waiting.append((peer, kind, tuple(ints), kept))
        return False

    def copy_queues(self, role: int | None = None) -> None:
        self._waiting = [
            (peer, kind, ints, bodies if role not in (None, peer.role) else [bytes(each) for each in bodies])
            for peer, kind, ints, bodies in self._waiting
        ]

    @property
    def posted(self) -> list[tuple[Peer, int, tuple[int, ...], bytes]]:
        """What was posted, if it was sent now."""
        return [
            (peer, kind, ints, b"".join(bytes(each) for each in bodies)) for peer, kind, ints, bodies in self._waiting
        ]

    def forget(self) -> None:
        """Forget what was posted."""
        self._waiting.clear()


def small_job(inputs: int = 3, outputs: int = 2) -> pl.Job:
    """Return a job of one layer."""
    return pl.Job(
        model=lambda: nn.Linear(inputs, outputs),
        data=(torch.zeros(4, inputs), torch.zeros(4, dtype=torch.long)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=2,
    )


def layout_of(job: pl.Job) -> Layout:
    return set_up(job, Plan.parse("downpour:workers=1"), "virtual", None).layout


def maker(
    job: pl.Job | None = None, codec: str = DENSE, pull: str = DENSE, ranks: int = 0
) -> Callable[[int], ShardState]:
    """Return what makes the state of a shard of a small model."""
    job = job or small_job()
    layout, pushes = layout_of(job), Pushes(Plain(), parse(codec), parse(pull), ranks=ranks)
    return lambda shard: ShardState(job, layout, shard, pushes)


def shard_server(hub: Notes, make: Callable[[int], ShardState] | None = None, shard: int = 0) -> ShardProcess:
    """Return server 0."""
    machine = ShardMachine(0, TIMING, shard)
    return ShardProcess(machine, lambda place: hub, AT_DESK, "127.0.0.1", make or maker(), 1)  # type: ignore[arg-type,return-value]
