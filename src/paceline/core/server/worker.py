"""The worker's side of a parameter server, as a machine of three integers.

        [ask] --Lease--> [compute] --> [push shard ...] --> [finish] --Lease--> [compute] ...
          |  ^           every shard once, each worker         |
        Done  \\-Wait--    starting at another one             +--Wait--> [ask]
          v                                                    +--Done--> [finished]
        [finished]

A worker starts with version 0 of every shard and pulls a shard's newest parameters with each push (Downpour with
n_fetch = n_push = 1). Where the shard gathers, a push may make no version, or be too late:

        [ask] --Lease--> [pull] --> [compute] --> [push] --Held, Apply--> [finish] --Lease--> [pull] ...
                            ^------------------Late--+

A worker that takes a dead one's place first joins and pulls every shard:

        [join] --Noted--> [pull shard ...] --> [ask] ...          [join] --Wait--> [join]
"""

from __future__ import annotations

from paceline.core.server.actions import Action, Done, Late, Lease, Wait
from paceline.core.server.events import Ask, Command, Compute, Finish, Join, Pull, Push

ASK, PULL, COMPUTE, PUSH, FINISHED = 0, 1, 2, 3, -1
JOIN, CATCH_UP = -2, -3  # and below, one pull per shard


class Worker:
    """One worker's side of the protocol."""

    def __init__(self, number: int, shards: int, gathering: bool = False, joins: bool = False) -> None:
        self.number, self.shards = number, shards
        self._leased = PULL if gathering else COMPUTE
        # Starting at another shard each, the workers of a round do not queue for the same lock.
        self.order = [(number + shard) % shards for shard in range(shards)]
        self.stage, self.batch, self.again = JOIN if joins else ASK, -1, False

    def command(self) -> Command | None:
        """Return what this worker does next; None when it has finished."""
        stage = self.stage
        if stage == FINISHED:
            return None
        if stage == ASK:
            return Ask(self.number)
        if stage == PULL:
            return Pull(self.number, self.order[0])
        if stage == COMPUTE:
            return Compute(self.number, self.batch)
        if stage == JOIN:
            return Join(self.number)
        if stage <= CATCH_UP:
            return Pull(self.number, self.order[CATCH_UP - stage])
        if stage < PUSH + self.shards:
            return Push(self.number, self.order[stage - PUSH], self.batch, self.again)
        return Finish(self.number, self.batch)

    def answer(self, action: Action) -> None:
        """Take the answer to the last command."""
        if isinstance(action, Late):
            self.stage = PULL
        elif PULL <= self.stage < PUSH + self.shards:
            self.stage += 1
        elif self.stage <= CATCH_UP:
            self.stage = self.stage - 1 if CATCH_UP - self.stage + 1 < self.shards else ASK
        elif self.stage == JOIN:
            self.stage = JOIN if isinstance(action, Wait) else CATCH_UP
        elif isinstance(action, Lease):
            self.stage, self.batch, self.again = self._leased, action.batch, action.again
        elif isinstance(action, Done):
            self.stage = FINISHED
        else:
            assert isinstance(action, Wait), action
            self.stage = ASK

    def continue_with(self, batch: int, pushed: int | None) -> None:
        """Continue with a batch that was leased elsewhere: compute it, or go on after so many pushes of it."""
        self.stage, self.batch, self.again = COMPUTE if pushed is None else PUSH + pushed, batch, False

    def key(self) -> tuple[int, int, bool]:
        return self.stage, self.batch, self.again
