"""Which blocks of batches are given out, and to whom: the desk of one machine, whose batches are blocks here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algorithms.cluster.messages import NONE, AllDone, Leased, NextBatch, Process
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.gates import Gate
from paceline.algorithms.server.messages import Action, Ask, Death, Finish, Join


@dataclass(frozen=True)
class DeskDuties:
    """What the desks of a run look after, in every epoch."""

    #: Workers that may take part at the same time.
    slots: int
    batches: int
    gate: Gate
    #: Servers that should hold each shard: 1 + backups.
    copies: int
    #: Batches that are leased at once. Block b is batches b * block to (b + 1) * block - 1.
    block: int = 1
    #: Servers n and n + nodes are on one node, and no two servers of a shard share one; 0: each is on its own.
    nodes: int = 0

    def node(self, server: int) -> int:
        return server % self.nodes if self.nodes else server


class Registration:
    """A worker that has registered with the desk."""

    def __init__(self, worker: Process, slot: int, holding: int) -> None:
        #: `slot` is its number in the plan.
        self.worker, self.slot = worker, slot
        #: The block that it works on, or NONE.
        self.holding = holding
        #: Its last request, and the answer; None while there is none.
        self.request: NextBatch | None = None
        self.answer: Leased | AllDone | None = None


class Leases:
    """The blocks of a run. They are rebuilt by `ready` when a shard has lost something, or the desk is another one."""

    def __init__(self, slots: int, batches: int, gate: Gate, block: int) -> None:
        self.slots, self.batches, self.gate = slots, batches, gate
        #: Block b is batches b * block to (b + 1) * block - 1.
        self.block, self.blocks = block, -(-batches // block)
        #: Whether nothing is given out that was not given out before.
        self.held = False
        self.ready(0, ())

    def ready(self, given_out: int, orphans: Sequence[int]) -> None:
        """Begin with so many blocks that were given out, of which these are not finished, and with no worker."""
        self.desk = Desk(self.slots, self.blocks, self.gate, len(orphans), keyed=True)
        self.state = [0] * self.desk.ints
        self.desk.init(self.state, given_out, orphans)
        for slot in range(self.slots):
            self.desk.handle(self.state, Death(slot))
        self.hold(self.held)

    def hold(self, paused: bool) -> None:
        """Give out nothing new, or go on."""
        self.held = paused
        self.desk.until = self.given_out if paused else self.blocks

    def of(self, block: int) -> range:
        """Return the batches of a block."""
        return range(block * self.block, min(self.batches, (block + 1) * self.block))

    @property
    def given_out(self) -> int:
        """Blocks that were given out."""
        return self.desk.given_out(self.state)

    @property
    def finished(self) -> int:
        """The batches that are finished, in whole blocks."""
        return min(self.batches, self.desk.finished(self.state) * self.block)

    @property
    def idle(self) -> bool:
        """Whether everything that was given out is finished."""
        return self.desk.finished(self.state) == self.given_out

    @property
    def done(self) -> bool:
        """Whether every block is finished."""
        return self.desk.finished(self.state) == self.blocks

    def join(self, registration: Registration) -> None:
        """Let a worker take its slot, with the block that it already works on."""
        self.desk.handle(self.state, Join(registration.slot))
        if registration.holding != NONE and not self.desk.retain(self.state, registration.slot, registration.holding):
            registration.holding = NONE

    def leave(self, registration: Registration) -> None:
        """Let another worker have what this one has leased."""
        self.desk.handle(self.state, Death(registration.slot))

    def return_block(self, registration: Registration) -> None:
        """Let anyone have what this worker has leased; it stays."""
        self.leave(registration)
        self.desk.handle(self.state, Join(registration.slot))

    def leased_to(self, registration: Registration) -> int:
        """Return the block that a worker has leased, or NONE."""
        return self.desk.leased(self.state)[registration.slot]

    def finish(self, registration: Registration, block: int) -> Action:
        """Count a worker's block as finished, and ask for the next one."""
        return self.desk.handle(self.state, Finish(registration.slot, block))

    def ask(self, registration: Registration) -> Action:
        """Ask for a block."""
        return self.desk.handle(self.state, Ask(registration.slot))
