"""The head's side of a plan without servers: it decides who belongs to the group, and collects the result."""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from time import perf_counter_ns as now

import torch
from torch import Tensor

from paceline.algorithms.cluster import group
from paceline.algorithms.cluster.group import Accuse, Excluded, Formed, Output, Regroup, SendToMember
from paceline.errors import DeathWarning, RunFailed
from paceline.plans.plan import Plan
from paceline.runtime.engines.checkpoint_manager import MARGIN, CheckpointManager
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.cluster.control import (
    Asked,
    Deliver,
    Ended,
    Finished,
    Message,
    Regrouped,
    Reported,
    Result,
    Rows,
    Snapshot,
    State,
    Wanted,
    state_of,
)
from paceline.runtime.engines.cluster.rendezvous import Node
from paceline.runtime.engines.cluster.second_home import Office
from paceline.runtime.engines.workers.messages import Failed
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.waiting import DELAYS
from paceline.runtime.runs.live import EventKind, ProcessKind, RunEvent
from paceline.runtime.runs.trace import Kind, Row
from paceline.training.parameters.replicas import mean_of
from paceline.training.parameters.worker_state import WorkerState

EPOCHS = 1 << 20  # of groups, in one term of the head


class GroupHead:
    """The head's side of a run whose ranks form a group."""

    def __init__(self, office: Office, patience: float, delay: Callable[[], float] = lambda: 0.0) -> None:
        """`delay` returns by how many seconds processes have run too late of late, which ranks are given on top."""
        self._patience, self._delay = patience, delay
        workers, succeeds = office.workers, office.succeeds
        self.workers, self.to_rank, self.snapshots, self.note = workers, office.to_rank, office.snapshots, office.note
        self.setup = setup = workers.setup
        self.checkpoints = GroupCheckpoints(workers.manager) if workers.manager is not None else None
        self.second_home = office.second_home
        ranks = succeeds.ranks if succeeds else (0, *workers.nodes)
        epoch = succeeds.term * EPOCHS if succeeds else 0
        alive, gives = set(ranks) - workers.dead, setup.plan.results == 1
        self.machine = group.Head(alive, patience, gives, epoch, starting=not workers.training)
        #: The groups that a head before this one has formed, as ranks say, and those that the trace tells of.
        self._earlier: dict[int, Regroup] = {}
        self._recorded = set(workers.groups)
        self.addresses: dict[int, Address] = {}
        #: Results that were delivered: the flat values of a worker.
        self.results: dict[int, Tensor] = {}
        self.wanted: tuple[int, ...] = ()
        if succeeds is not None:
            self._act(self.machine.take_over(time.monotonic()))

    @property
    def done(self) -> bool:
        """Whether every result that is wanted was delivered."""
        return bool(self.wanted) and all(rank in self.results for rank in self.wanted)

    def values(self) -> list[Tensor]:
        """Return the trainable parameters in the module's order, then the moving buffers."""
        layout, names = self.setup.layout, self.setup.names
        return mean_of([layout.collect([self.results[rank]], names) for rank in self.wanted])

    # --- what the head hears ---

    def handle_message(self, rank: int, message: Message, content: memoryview) -> None:
        """Take a message of the agent of a rank."""
        at = time.monotonic()
        if isinstance(message, Reported):
            self.addresses[rank] = message.address
            self._act(self.machine.report(at, rank, message.report))
        elif isinstance(message, Regrouped):
            self._earlier[message.group.epoch] = message.group
        elif isinstance(message, Accuse):
            self._act(self.machine.accuse(at, rank, message))
        elif isinstance(message, Rows):
            self.workers.add_rows(rank, message, content)
        elif isinstance(message, Snapshot) and self.snapshots is not None:
            if len(content):  # else it is in this node's own file already
                self.snapshots.put(message.updates, content)
            self.second_home.snapshot(message.updates)
        elif isinstance(message, Finished):
            self.workers.finished[rank] = message
            self._want()
        elif isinstance(message, Result):
            self.results[rank] = torch.frombuffer(bytearray(content), dtype=self.setup.layout.dtype)
        elif isinstance(message, State) and self.checkpoints is not None:
            self.checkpoints.put(rank, message.update, state_of(message, content))
        elif isinstance(message, Asked):
            self._asked(rank, message.signal)
        elif isinstance(message, Ended):
            self.lost(rank, f"died ({message.how})")
        elif isinstance(message, Failed) and rank in self.machine.alive:
            victims = sorted(self.machine.alive - {rank} - self.workers.finished.keys())
            raise self.workers.diagnosis.failed(rank, message.report, victims)

    def reached(self, rank: int) -> None:
        """A rank follows this head, which has taken over: whatever its worker is in is cancelled."""
        self.to_rank(rank, group.AbortFlag(self.machine.epoch))

    def complete(self) -> None:
        """All ranks follow this head."""

    def lost(self, rank: int, why: str) -> None:
        """A worker has died, or its node cannot be reached."""
        self._act(self.machine.gone(time.monotonic(), rank, why))

    def joined(self, rank: int, node: Node) -> None:
        """A node has come while the run goes on: the group grows when its worker is ready."""
        self.workers.ahead[rank] = node.ahead
        self.machine.join(rank)

    def poll(self) -> None:
        """Do what is due; called several times a second."""
        self.machine.patience = self._patience + DELAYS * self._delay()
        self._act(self.machine.tick(time.monotonic()))
        if self.checkpoints is not None and self.workers.training:
            due = self.checkpoints.take(self.machine.alive, self.workers.doing)
            if due is not None:
                self.checkpoints.manager.save(due, self.workers.observer)

    def _asked(self, rank: int, number: int) -> None:
        """A node was sent a signal: Ctrl-C stops the run, any other ends that node alone."""
        if number != signal.SIGINT:
            self.lost(rank, f"was asked to end ({signal.Signals(number).name})")
        elif self.checkpoints is not None:
            self.checkpoints.manager.signals.take_of_another(number)
        else:
            raise KeyboardInterrupt

    # --- what it does ---

    def _act(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Formed):
                self._formed(output)
            elif isinstance(output, Excluded):
                self._excluded(output)
            elif isinstance(output, SendToMember):
                message = output.message
                if isinstance(message, Regroup):
                    addresses = tuple(self.addresses[rank] for rank in message.ranks)
                    earlier = tuple(self._earlier[epoch] for epoch in sorted(self._earlier))
                    self.to_rank(output.to, Regrouped(message, addresses, earlier))
                else:
                    self.to_rank(output.to, message)

    def _formed(self, formed: Formed) -> None:
        group, workers = formed.group, self.workers
        workers.dead -= set(group.ranks)
        self.note(RunEvent(EventKind.GROUP, time.time(), number=group.epoch, members=group.ranks))
        if not workers.training:
            workers.training_started()
        if self.checkpoints is not None:
            self.checkpoints.ask = lambda update: self._broadcast(Wanted(update))
        for each in [*(self._earlier[epoch] for epoch in sorted(self._earlier)), group]:
            if each.epoch not in self._recorded and not self._is_implied(each):
                workers.observer.note(_rows_of(each, now()))
            self._recorded.add(each.epoch)

    def _is_implied(self, group: Regroup) -> bool:
        """Whether a group is that with which every run begins of which the trace does not say otherwise."""
        return group.epoch == 1 and len(group.ranks) == self.workers.count and self.workers.observer.start is None

    def _excluded(self, excluded: Excluded) -> None:
        """A rank is no longer part of the run: the others go on, or no one is left."""
        rank, alive = excluded.rank, self.machine.alive
        self.note(RunEvent(EventKind.LOST, time.time(), ProcessKind.WORKER, rank, rank, why=excluded.why))
        self.workers.dead.add(rank)
        self.workers.finished.pop(rank, None)
        self.workers.died(rank, excluded.why)
        if not alive:
            raise RunFailed(f"rank {rank} {excluded.why}, and no other is left to finish the run")
        update = self.workers.doing[rank]
        where = f"in update {update}" if update >= 0 else "before its first update"
        others = ", ".join(map(str, sorted(alive)))
        go_on = f"ranks {others} go on and compute" if len(alive) > 1 else f"rank {others} goes on and computes"
        what = f"rank {rank} {excluded.why}. It was {where}; {go_on} its part of each batch"
        warnings.warn(what, DeathWarning, stacklevel=2)
        self._want()

    def _broadcast(self, message: Message) -> None:
        for rank in sorted(self.machine.alive):
            self.to_rank(rank, message)

    def _want(self) -> None:
        """Ask for the results as soon as every living worker has finished."""
        if self.workers.finished.keys() != self.machine.alive:
            return
        results = self.setup.plan.results
        self.wanted = tuple(sorted(self.machine.alive)[:results])
        for rank in self.wanted:
            if rank not in self.results:
                self.to_rank(rank, Deliver())


def _rows_of(group: Regroup, at: int) -> list[Row]:
    """Return the rows of a group for the trace, one for each of its ranks."""
    pairs = zip(group.ranks, group.held, strict=True)
    return [
        Row(Kind.REGROUP, rank, group.since, base=last, version=group.epoch, start=at, end=at) for rank, last in pairs
    ]


# --- The checkpoints of a group without servers: the head makes them of the states that agents send -------------------
# Each worker leaves its state after the same update, as on one machine, and its agent sends it to the head. Where all
# workers hold the same after every update, the state of one of them is enough.


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
        self._states = {later: state for later, state in self._states.items() if later > update}
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


def refuses_newcomers(plan: Plan) -> str:
    """Return why no node can join a training that goes on under a plan; empty where one can."""
    if plan.method.server is not None:
        return ""
    if not plan.traits.agrees:
        return "every worker has a replica of its own, which no other could give to a newcomer"
    return "a worker owes what its codec has left out, and a newcomer does not have that" if owes(plan) else ""


def state_for(start: Checkpoint, rank: int, agrees: bool) -> WorkerState:
    """Return the state that a worker begins with in a resumed run."""
    rank_state = start.holders.get(f"worker.{rank}", WorkerState())
    return start.holders["worker.0"].without("owed") | rank_state if agrees else rank_state
