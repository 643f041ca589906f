"""The worker's side of a parameter server, as a machine of three integers.

        [ask] --Lease--> [compute] --> [push shard ...] --> [finish] --Lease--> [compute] ...
          |  ^           every shard once, each worker         |
        Done  \\-Wait--    starting at another one             +--Wait--> [ask]
          v                                                    +--Done--> [home]
        [home]

A worker starts with version 0 of every shard in its hands and pulls a shard's newest parameters with each push
(Downpour with n_fetch = n_push = 1). Where the shard gathers, a push may come back empty-handed, or too late:

        [ask] --Lease--> [pull] --> [compute] --> [push] --Held, Apply--> [finish] --Lease--> [pull] ...
                            ^------------------Late--+
"""

from __future__ import annotations

from paceline.core.server.actions import Action, Done, Late, Lease, Wait
from paceline.core.server.events import Ask, Command, Compute, Finish, Pull, Push

ASK, PULL, COMPUTE, PUSH, FINISHED = 0, 1, 2, 3, -1


class Worker:
    def __init__(self, number: int, shards: int, gathering: bool = False) -> None:
        self.number, self.shards = number, shards
        self._leased = PULL if gathering else COMPUTE
        # Starting at another shard each, the workers of a round do not queue for the same lock.
        self.order = [(number + shard) % shards for shard in range(shards)]
        self.stage, self.batch, self.again = ASK, -1, False

    def command(self) -> Command | None:
        """What this worker does next; None when it has gone home."""
        stage = self.stage
        if stage == FINISHED:
            return None
        if stage == ASK:
            return Ask(self.number)
        if stage == PULL:
            return Pull(self.number, self.order[0])
        if stage == COMPUTE:
            return Compute(self.number, self.batch)
        if stage < PUSH + self.shards:
            return Push(self.number, self.order[stage - PUSH], self.batch, self.again)
        return Finish(self.number, self.batch)

    def answer(self, action: Action) -> None:
        """What came of it."""
        if isinstance(action, Late):
            self.stage = PULL
        elif PULL <= self.stage < PUSH + self.shards:
            self.stage += 1
        elif isinstance(action, Lease):
            self.stage, self.batch, self.again = self._leased, action.batch, action.again
        elif isinstance(action, Done):
            self.stage = FINISHED
        else:
            assert isinstance(action, Wait), action
            self.stage = ASK

    def key(self) -> tuple[int, int, bool]:
        return self.stage, self.batch, self.again
