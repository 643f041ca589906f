"""The checkpoints of a group without servers: the head makes them of the states that agents send.

Each worker leaves its state after the same update, as on one machine, and its agent sends it to the head. Where all
workers hold the same after every update, the state of one of them is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from paceline.plans.plan import Plan
from paceline.runtime.engines.checkpoint_manager import MARGIN, CheckpointManager
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.training.parameters.worker_state import WorkerState


class GroupCheckpoints:
    """Takes the checkpoints of one run from what agents send."""

    def __init__(self, manager: CheckpointManager) -> None:
        self.setup, self.manager = manager.setup, manager
        #: Called with the update after which all workers leave their states.
        self.ask: Callable[[int], None] = lambda update: None
        #: By update and rank.
        self._states: dict[int, dict[int, WorkerState]] = {}
        #: The update that was asked for last, and how far ahead of the workers it was.
        self._wanted, self._margin = -1, MARGIN

    def put(self, rank: int, update: int, state: WorkerState) -> None:
        """Take a state that a worker has left."""
        if update > self.manager.last:
            self._states.setdefault(update, {})[rank] = state

    def take(self, alive: Collection[int], doing: Sequence[int]) -> Checkpoint | None:
        """Return the newest checkpoint that is complete, if there is one; ask for one that is due."""
        complete = [update for update, states in self._states.items() if self._complete(states, alive)]
        if complete:
            return self._checkpoint(max(complete))
        begun = [doing[rank] for rank in alive]
        if self.manager.requested and min(begun) >= self._wanted:
            # A worker may pass that update before it hears of it; then a later one is tried.
            self._wanted = max(self.manager.last, *begun) + self._margin
            self._margin *= 2
            self.ask(self._wanted)
        return None

    def _complete(self, states: dict[int, WorkerState], alive: Collection[int]) -> bool:
        if self.setup.plan.traits.agrees and not owes(self.setup.plan):
            return any(state.tensors for state in states.values())
        return all(rank in states for rank in alive)

    def _checkpoint(self, update: int) -> Checkpoint:
        """Make a checkpoint, in which every worker of the plan has a state: one that is gone has another one's."""
        states = self._states[update]
        self._states = {later: found for later, found in self._states.items() if later > update}
        self._margin = MARGIN
        some = next(states[rank] for rank in sorted(states) if "values.0" in states[rank].tensors)
        missing = WorkerState() if self.setup.plan.traits.agrees else some.without("owed")
        rank_states = {rank: states.get(rank, missing) for rank in range(self.setup.plan.workers)}
        if self.setup.plan.traits.agrees:  # one has what all have; what it owes is each worker's own
            rank_states = {rank: state.only("owed") for rank, state in rank_states.items()}
            rank_states[0] = some.without("owed") | rank_states[0]
        holders = {f"worker.{rank}": state for rank, state in rank_states.items()}
        return self.manager.checkpoint(update, holders)


def owes(plan: Plan) -> bool:
    """Whether each worker keeps something of its own between two gradients, though all hold the same parameters."""
    codec = plan.codec
    return codec is not None and (codec.feedback or bool(codec.remembers((2, 2))))


def state_for(start: Checkpoint, rank: int, agrees: bool) -> WorkerState:
    """Return the state that a worker begins with in a resumed run."""
    rank_state = start.holders.get(f"worker.{rank}", WorkerState())
    return start.holders["worker.0"].without("owed") | rank_state if agrees else rank_state
