"""The head's side of checkpoints: when one is due, and the states of the workers that make it.

Each worker leaves its state after the same update, as on one machine, and its agent sends it to the head. Where all
workers hold the same after every update, the state of one of them is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from paceline.engines import checkpoints
from paceline.engines.checkpoints import Checkpoint, CheckpointRequest
from paceline.engines.local.checkpointing import MARGIN, Writer, model_of
from paceline.engines.observer import Observer
from paceline.engines.setup import Setup
from paceline.engines.signals import Signals
from paceline.errors import RunStopped
from paceline.parameters.worker_state import WorkerState
from paceline.plans.plan import Plan


class Checkpoints:
    """When the checkpoints of one run are due, and the thread that writes them."""

    def __init__(self, setup: Setup, request: CheckpointRequest) -> None:
        self.setup, self.request, self.signals = setup, request, Signals()
        #: When the training began, less the nanoseconds that it took before the run was resumed.
        self.origin = 0
        self.writer = Writer(self._write)
        #: The updates of the newest checkpoint, and when it was taken.
        self.last = request.start.updates if request.start else 0
        self._taken_at = time.monotonic()

    @property
    def requested(self) -> bool:
        """Whether a signal or the clock has asked for a checkpoint that is not taken yet."""
        self.writer.warn()
        seconds = self.request.interval.seconds
        if seconds and time.monotonic() - self._taken_at >= seconds:
            self.signals.requested = True
        return self.signals.requested

    def take(self, checkpoint: Checkpoint, observer: Observer) -> None:
        """Have a checkpoint written, now that every row that led to it is there; end the run if a signal asked so.

        Raises:
            RunStopped: it was the last one.
        """
        self.last, self._taken_at, self.signals.requested = checkpoint.updates, time.monotonic(), False
        observer.look(stopping=bool(self.signals.ending))
        assert observer.writer is not None
        self.writer.offer(checkpoint, observer.writer.sync)
        if self.signals.ending:
            self.writer.flush()
            loss = observer.writer.so_far().newest_loss
            run, updates = str(self.request.run), self.setup.agenda.updates
            raise RunStopped(self.signals.ending, checkpoint.updates, updates, loss, run)

    def close(self) -> None:
        self.writer.close()

    def _write(self, checkpoint: Checkpoint, sync_trace: Callable[[], None]) -> None:
        sync_trace()
        checkpoints.write(self.request.run, checkpoint, model_of(self.setup, checkpoint))


class FarCheckpoints:
    """Takes the checkpoints of one run from what agents send."""

    def __init__(self, written: Checkpoints) -> None:
        self.setup, self.written = written.setup, written
        #: Called with the update after which all workers leave their states.
        self.ask: Callable[[int], None] = lambda update: None
        #: By update and rank.
        self._states: dict[int, dict[int, WorkerState]] = {}
        #: The update that was asked for last, and how far ahead of the workers it was.
        self._wanted, self._margin = -1, MARGIN

    def put(self, rank: int, update: int, state: WorkerState) -> None:
        """Take a state that a worker has left."""
        if update > self.written.last:
            self._states.setdefault(update, {})[rank] = state

    def take(self, alive: Collection[int], doing: Sequence[int]) -> Checkpoint | None:
        """Return the newest checkpoint that is complete, if there is one; ask for one that is due."""
        whole = [update for update, states in self._states.items() if self._complete(states, alive)]
        if whole:
            return self._checkpoint(max(whole))
        begun = [doing[rank] for rank in alive]
        if self.written.requested and min(begun) >= self._wanted:
            # A worker may pass that update before it hears of it; then a later one is tried.
            self._wanted = max(self.written.last, *begun) + self._margin
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
        own = {rank: states.get(rank, missing) for rank in range(self.setup.plan.workers)}
        if self.setup.plan.traits.agrees:  # one has what all have; what it owes is each worker's own
            own = {rank: state.only("owed") for rank, state in own.items()}
            own[0] = some.without("owed") | own[0]
        holders = {f"worker.{rank}": state for rank, state in own.items()}
        written = self.written
        return Checkpoint(update, time.perf_counter_ns() - written.origin, written.request.lives, None, holders)


def owes(plan: Plan) -> bool:
    """Whether each worker keeps something of its own between two gradients, though all hold the same parameters."""
    codec = plan.codec
    return codec is not None and (codec.feedback or bool(codec.remembers((2, 2))))


def state_for(start: Checkpoint, rank: int, agrees: bool) -> WorkerState:
    """Return the state that a worker begins with in a resumed run."""
    own = start.holders.get(f"worker.{rank}", WorkerState())
    return start.holders["worker.0"].without("owed") | own if agrees else own
