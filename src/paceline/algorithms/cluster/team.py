"""A team: the processes of one node that compute the chunks of a batch at once, and meet in shared memory.

    leader (the node's worker)                     helpers
    --------------------------                     -------
    1 writes the parameters
    2 asks: turn, task --------------------------> 3 read the parameters, compute their own chunks
    4 computes its own chunks                      5 write the sums of each chunk, then the turn
    6 sums in the order of chunks <---------------
    7 pushes the batch

What goes out is one push of one batch, under its number, by one worker: the cluster's protocol does not know of teams,
and all that it promises of a batch holds of one that a team has computed. This machine only has to see to it that what
is summed at 6 is of this very turn. A chunk has one helper that may write it, for the whole run.

*A helper dies.* The leader computes its chunks itself, and goes on without it until the agent has started another.
*A helper is late*, as it was stopped or is slow: the same. It is not asked again before it has finished.
*The leader dies.* The desk leases its batch again; the next leader of the node takes a greater turn, and does not take
what is still under way for the turn before.

BytePS and Horovod's hierarchical all-reduce join what a machine has in the same place, before anything leaves it.
Hadjis, Zhang, Mitliagkas, Iter, Re 2016 (Omnivore) call such a team a compute group: in step inside, asynchronous
outside.

state, from `at`: for each helper: turn and task that it was asked for | the same when it is done | its life
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paceline.algorithms.server.messages import State

ASKED, DONE, LIFE, INTS = 0, 1, 2, 3
TASKS = 1 << 32  # more than any run has
GONE = 0  # the life of a helper that is not there


class Turn(NamedTuple):
    """A batch that a team computes."""

    number: int
    task: int


class Answer(Enum):
    """What a leader finds when it looks at a helper."""

    NOT_YET = "not yet"
    DONE = "done"
    GONE = "gone"


@dataclass(frozen=True)
class Team:
    """The integers by which a leader and its helpers meet. Each function is called by the one that it names."""

    #: Processes that compute: the leader and its helpers.
    processes: int
    #: Chunks that a batch is cut into.
    parts: int
    at: int = 0

    @property
    def ints(self) -> int:
        return (self.processes - 1) * INTS

    def process_of(self, chunk: int) -> int:
        """Return which process computes a chunk of a batch, of those of several batches: 0 for the leader."""
        return chunk % self.parts * self.processes // self.parts

    def ask(self, state: State, task: int) -> tuple[Turn, dict[int, int]]:
        """Leader: ask all helpers that are there and free. Returns the turn, and the life of each that was asked."""
        helpers = range(1, self.processes)
        turn = Turn(1 + max((self._read(state, each, ASKED).number for each in helpers), default=0), task)
        lives = {}
        for helper in helpers:
            life = state[self._place(helper, LIFE)]
            if life != GONE and state[self._place(helper, ASKED)] == state[self._place(helper, DONE)]:
                state[self._place(helper, ASKED)] = turn.number * TASKS + task
                lives[helper] = life
        return turn, lives

    def answer(self, state: State, helper: int, turn: Turn, life: int) -> Answer:
        """Leader: look whether a helper that was asked has finished."""
        if self._read(state, helper, DONE) == turn:
            return Answer.DONE
        return Answer.NOT_YET if state[self._place(helper, LIFE)] == life else Answer.GONE

    def enter(self, state: State, helper: int, life: int) -> None:
        """Helper: take part from now on. What the one before it was asked for and has not finished is due."""
        state[self._place(helper, LIFE)] = life

    def due(self, state: State, helper: int) -> Turn | None:
        """Helper: return what it is asked for."""
        turn = self._read(state, helper, ASKED)
        return turn if turn != self._read(state, helper, DONE) else None

    def done(self, state: State, helper: int, turn: Turn) -> None:
        """Helper: what it was asked for in this turn is written."""
        state[self._place(helper, DONE)] = turn.number * TASKS + turn.task

    def ended(self, state: State, helper: int) -> None:
        """Agent: the process of a helper has ended."""
        state[self._place(helper, LIFE)] = GONE

    def _place(self, helper: int, field: int) -> int:
        return self.at + (helper - 1) * INTS + field

    def _read(self, state: State, helper: int, field: int) -> Turn:
        return Turn(*divmod(state[self._place(helper, field)], TASKS))
