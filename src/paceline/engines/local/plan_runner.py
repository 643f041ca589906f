"""A worker's place in the arena, and what it does there between gradients: a generator for each kind of plan, which
asks for the gradient of some chunks, is sent it, and goes on.

    due = next(algorithm)                      # which chunks, from which version
    due = algorithm.send(computed)             # their gradient; None: no more will come

Who computes is another's affair: a worker process of a local run (`worker`), or the user's own loop (`guest`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from paceline.core.agenda import Agenda, Chunk
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.rules import Arrival, Averaging
from paceline.core.server.actions import Action, Apply, Noted, Wait
from paceline.core.server.events import Ask, Command, Compute, Finish, Pull, Push
from paceline.core.server.worker import Worker
from paceline.engines.local.arena import DESK_LOCK, Arena
from paceline.engines.local.collectives import Means, NeighbourClient, TableClient
from paceline.engines.local.shards import CentreClient, GatheringClient, shard_client
from paceline.engines.local.state_buffers import ResumePoint
from paceline.engines.local.state_writer import StateWriter
from paceline.engines.local.worker_context import WorkerContext
from paceline.gradients.encoder import GradientEncoder
from paceline.gradients.learner import Learner
from paceline.gradients.payload import GradientSum
from paceline.links.shared_memory import Cancelled, RecordLock
from paceline.parameters.replicas import AveragingReplica
from paceline.parameters.store import LocalStore, Optimizer, restore_store, state_of_store
from paceline.parameters.worker_state import WorkerState, restore_memories
from paceline.plans.plan import Plan
from paceline.runs.trace import Kind

if TYPE_CHECKING:
    from paceline.engines.local.process_group import GroupClient


class GradientRequest(NamedTuple):
    """A gradient that is asked for."""

    update: int  # or task
    chunks: list[Chunk]
    version: int  # of the parameters it is computed from


Algorithm = Generator[GradientRequest, GradientSum | None, None]


class PlanRunner(WorkerContext):
    def __init__(
        self, number: int, arena: Arena, plan: Plan, agenda: Agenda, learner: Learner, optimizer: Optimizer,
        deadline: float, life: ResumePoint, library: str = "",
    ) -> None:  # fmt: skip
        super().__init__(number, arena, plan, agenda, deadline, life)
        self.library = library  # that adds up in the place of a table
        self.learner, self.replica, self.job, self.optimizer = learner, learner.replica, learner.replica.job, optimizer
        self.sender = GradientEncoder(plan.wire, self.replica.parameters)
        self.carried = self.sender.carried
        self.state_writer = StateWriter(self)
        self.gradients: list[Tensor | None] = []
        self.waited = 0  # nanoseconds at the gate, not yet in the trace
        if plan.gate is not None:
            self.shards = [shard_client(self, shard) for shard in range(len(arena.shards))]
            for client in self.shards:
                client.go_on()
            self.desk_lock = RecordLock(arena.locks, DESK_LOCK, self.waiter, "the desk")

    def algorithm(self) -> Algorithm:
        """What this worker does, if it is not PyTorch that does it (ddp) or a programme."""
        if self.plan.gate is not None:
            return self._by_shards()
        if self.plan.averaging is not None:
            return self._wander(self.plan.averaging)
        return self._alone() if self.plan.meeting is None else self._by_table()

    def snapshot(self, updates: int, values: Callable[[], list[Tensor]]) -> None:
        """So many updates are done: a moment to look at the parameters."""

    @property
    def ahead(self) -> range:
        """The updates that this worker has before it, where no gate decides as they come."""
        alone = self.plan.meeting is None and not self.plan.native
        first, step = (self.number, self.plan.workers) if alone else (0, 1)
        return range(self.life.start + (first - self.life.start) % step, self.agenda.updates, step)

    def go_on(self, home: LocalStore) -> Callable[[], WorkerState]:
        """Begin where an earlier life of the run ended, if there was one. What this worker has of its own, later."""
        if (found := self.state_writer.found) is not None:
            self.replica.restore(found)
            restore_store(home, found)
            restore_memories(self.sender.carried, found, "owed")
        if self.number and self.plan.agrees:
            return WorkerState
        return lambda: self.replica.worker_state() | state_of_store(home)

    def values(self) -> list[Tensor]:
        return self.replica.values()

    def hand_in(self, values: list[Tensor]) -> None:
        """Leave parameters and moving buffers where all find them."""
        self.look_back()
        if self.number < len(self.arena.results):
            (shard,), result = self.arena.shape.layout.shards, self.arena.results[self.number]
            for view, value in zip((*shard.parameter_views(result), *shard.buffer_views(result)), values, strict=True):
                view.copy_(value)

    def local_store(self) -> LocalStore:
        return LocalStore(
            self.replica.parameters, self.optimizer, self.job.schedule, self.plan.averaging or self.plan.rule
        )

    # --- alone: no meeting at all ---------------------------------------------------------------------------------

    def _alone(self) -> Algorithm:
        """`sequential`; and `ceiling`, where every worker does so with batches of its own."""
        home = self.local_store()
        own = self.go_on(home)
        for update in self.ahead:
            computed = yield GradientRequest(update, self.agenda.filled(update), home.updates)
            if computed is None:
                break
            self._apply(home, update, computed)
            self.state_writer.in_step(update, update + self.plan.workers, own)
        self.hand_in(self.values())

    def _apply(self, home: LocalStore, update: int, computed: GradientSum) -> None:
        start, base = now(), home.updates
        self.plan.rule.update(home, Arrival(self.learner.settle(computed)))
        self.record(Kind.APPLY, update, 0, base, home.updates, start, now(), 0, 0, 0, 0.0)
        if self.number == 0:
            self.snapshot(update + 1, self.values)

    # --- by a table: all workers meet in every update ---------------------------------------------------------------

    def _by_table(self) -> Algorithm:
        home = self.local_store()
        own = self.go_on(home)
        table = self._table()
        for update in self.ahead:
            computed = yield GradientRequest(update, self.agenda.mine(update, self.number), update)
            if computed is None:
                break
            start = now()
            together, waited, sent = table.meet(update, computed)
            self.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)
            self._apply(home, update, together)
            self.state_writer.in_step(update, update + 1, own)
        self.hand_in(self.values())

    def _table(self) -> TableClient | GroupClient:
        """This worker's hands on what adds all up."""
        if self.library:
            from paceline.engines.local.process_group import (
                GroupClient,  # PyTorch's groups take half a second to import
            )

            return GroupClient(self)
        return TableClient(self, self.plan.meeting, self.plan.workers)  # type: ignore[arg-type]

    # --- apart: local steps; now and then the replicas meet ---------------------------------------------------------

    def _wander(self, rule: Averaging) -> Algorithm:
        meeting, workers, first = self.plan.meeting, self.plan.workers, rule.mixes_first
        home, meetings, apart = self.local_store(), 0, False
        replica_averaging, own = AveragingReplica(self.learner, home, rule), self.go_on(home)
        table = NeighbourClient(self, meeting, workers) if isinstance(meeting, Neighbours) else self._table()
        for update in self.ahead:
            computed = yield GradientRequest(update, self.agenda.mine(update, self.number), update)
            if computed is None:
                if apart:  # as after the last update of an agenda
                    self._meet(update - 1, meetings, replica_averaging, table)
                break
            due = self.plan.meets_after(update, self.agenda.updates)
            if due and first:
                self._meet(update, meetings, replica_averaging, table)
            start = now()
            replica_averaging.step(computed)
            self.record(Kind.APPLY, update, 0, update, update + 1, start, now(), 0, 0, 0, 0.0)
            if due and not first:
                self._meet(update, meetings, replica_averaging, table)
            meetings += due
            apart = not due
            if self.number == 0:
                self.snapshot(update + 1, replica_averaging.result)
            self.state_writer.in_step(update, update + 1, own)
        self.hand_in(replica_averaging.result())

    def _meet(self, update: int, number: int, replica_averaging: AveragingReplica, table: Means) -> None:
        start = now()
        mean, waited, sent = table.mean(number, replica_averaging.bring())
        replica_averaging.take(mean)
        self.record(Kind.MEET, update, -1, update, -1, start, now(), waited, 0, sent, 0.0)

    # --- by shards: the server's machines, run by whoever holds the lock --------------------------------------------

    def _by_shards(self) -> Algorithm:
        worker, leaving = Worker(self.number, len(self.shards), self.plan.gathers > 0), False
        while (command := worker.command()) is not None and not (leaving and isinstance(command, Ask | Compute)):
            if isinstance(command, Compute):
                came = yield from self._lease(self.agenda.tasks(command.batch))
                leaving = came < len(self.agenda.tasks(command.batch))
                if not came:
                    break
                worker.answer(Noted())
            else:
                worker.answer(self._perform(command))

    def _lease(self, tasks: Sequence[int]) -> Generator[GradientRequest, GradientSum | None, int]:
        """How many of these tasks came."""
        for done, task in enumerate(tasks):
            if self.agenda.begins(task):
                self._centre.exchanging.begin()
            computed = yield GradientRequest(task, self.agenda.task(task), self.shards[0].base)
            if computed is None:
                return done
            self.gradients = self.shards[0].settle(task, computed)
        return len(tasks)

    def _perform(self, command: Command) -> Action:
        if isinstance(command, Push):
            action = self.shards[command.shard].push(command, self.gradients)
            if self.plan.gathers and isinstance(action, Apply):
                self.snapshot(action.version, self.values)
            return action
        if isinstance(command, Pull):
            client = self.shards[command.shard]
            assert isinstance(client, GatheringClient)
            return client.pull(command)
        assert isinstance(command, Ask | Finish), command
        self.gradients = []  # before the next ones are made: what a step touches should stay in the cache
        action = self._tell_desk(command)
        if isinstance(action, Wait):
            start = now()
            self.doorbells[self.number].sleep(self.called_off)
            self.waited += now() - start
            if self.called_off():
                raise Cancelled
        return action

    @property
    def _centre(self) -> CentreClient:
        (client,) = self.shards
        assert isinstance(client, CentreClient)
        return client

    def _tell_desk(self, command: Ask | Finish) -> Action:
        desk, twin = self.arena.shape.desk, self.arena.desk
        assert desk is not None
        assert twin is not None
        with self.desk_lock:
            draft = twin.begin()
            action = desk.handle(draft, command)
            twin.commit()
            finished = desk.finished(draft)
        if isinstance(command, Finish):
            for doorbell in self.doorbells:
                doorbell.ring()  # whoever waits at the gate may ask again
            self.state_writer.finished(self.agenda.done_by(finished - 1), self.agenda.done_by(finished))
            if not self.plan.gathers:
                self.snapshot(self.agenda.made_by(finished), self.shards[0].values)
        return action
