"""A cut: a consistent state of the desk and all shards, from which other workers can resume.

    desk       given out 0 1 2 3 4 5      workers hold 3, 5; an orphan 4
    shard 0    has      0 1 2 3 . 5       version 5
    shard 1    has      0 1 2 . . 5       version 4
    the cut    under way: 3 (shard 0 has it), 4;  5 needs only its "Finish": it is done

The cut is taken while no worker is inside a step: with every shard's lock held, and the desk's. After it a batch that
is under way is an orphan of a *ghost*, a worker that is dead from the start: it is leased again, and dropped by the
shards that already have it. So each shard applies each batch once, whichever workers were killed and however many
resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.algorithms.server.desk import NONE, Desk
from paceline.algorithms.server.shard import Gathering, Shard

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State


class UnderWay(NamedTuple):
    """A batch that not every shard has."""

    batch: int
    #: The shards that already have it.
    shards: tuple[int, ...]


class Cut(NamedTuple):
    """The batches and versions of a run at one moment."""

    #: Batches that were leased so far.
    given_out: int
    #: The version of each shard.
    versions: tuple[int, ...]
    under_way: tuple[UnderWay, ...]

    @property
    def finished(self) -> int:
        return self.given_out - len(self.under_way)

    @property
    def pending_owners(self) -> int:
        return len(self.under_way)

    def restore(self, desk: Desk, state: State, machine: Shard | Gathering, shards: Sequence[State]) -> None:
        """Restore the desk and the shards, which must be made for this number of ghosts."""
        desk.init(state, self.given_out, [batch for batch, _ in self.under_way])
        for number, (shard, version) in enumerate(zip(shards, self.versions, strict=True)):
            machine.init(shard, version, [batch if number in holders else NONE for batch, holders in self.under_way])


def take_cut(desk: Desk, state: State, machine: Shard | Gathering, shards: Sequence[State]) -> Cut:
    """Return the cut of these states; gradients that a shard holds for a round count as not pushed."""
    batches = {batch for shard in shards for batch in machine.held(shard)}
    under_way = []
    for batch in sorted({*desk.under_way(state), *batches}):
        holders = tuple(n for n, shard in enumerate(shards) if batch not in batches and machine.has(shard, batch))
        if len(holders) < len(shards):
            under_way.append(UnderWay(batch, holders))
    return Cut(desk.given_out(state), tuple(shard[0] for shard in shards), tuple(under_way))
