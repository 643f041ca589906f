"""The parent of a local run: it starts the workers, observes them, and decides what a death means for the run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch import Tensor, nn

from paceline.algorithms.server.messages import Death
from paceline.errors import DeathWarning, JobWarning, RunFailed
from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import INSIDE
from paceline.runtime.engines.checkpoint_manager import CheckpointManager
from paceline.runtime.engines.checkpoints import Checkpoint, CheckpointRequest, resume_line
from paceline.runtime.engines.local.checkpointing import LocalCheckpoints
from paceline.runtime.engines.observer import GONE, Diagnosis, Ending, Observer, process_state
from paceline.runtime.engines.outcome import Life, Outcome, Snapshot, list_snapshots, open_snapshots
from paceline.runtime.engines.servers.ports import version_shapes
from paceline.runtime.engines.servers.stage_shards import stage_shards, whole_values
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.signals import termination
from paceline.runtime.engines.workers.arena import ABORT, DESK_LOCK, GO, Arena, ArenaShape
from paceline.runtime.engines.workers.messages import Assignment, Died, Failed, Finished, Message, Ready
from paceline.runtime.engines.workers.process import oom_kills, short_folder, start_process, too_long
from paceline.runtime.engines.workers.process_main import main
from paceline.runtime.engines.workers.state_buffers import ResumePoint
from paceline.runtime.engines.workers.worker_context import TAKEN
from paceline.runtime.links.membership import RecordLock
from paceline.runtime.links.memory import SharedTensors
from paceline.runtime.links.waiting import Waiter
from paceline.runtime.runs.live import Phase, ProcessRecord
from paceline.runtime.runs.trace import Trace
from paceline.training.data.source import TensorSource
from paceline.training.operators.planning import with_operators_of
from paceline.training.parameters.layout import state_tensors, trainable
from paceline.training.parameters.shard_version import VersionShape
from paceline.training.splits.slicing import sliced
from paceline.training.stages.cutting import skeleton

POLL = 0.1  # seconds between two looks at the workers, at most


@contextlib.contextmanager
def train(life: Life) -> Iterator[Outcome]:
    """Run the plan on processes of this machine; no process, file or memory is left behind, however it ends."""
    pool, setup = WorkerPool(life), life.setup
    try:
        try:
            with pool.checkpoints.manager.listening(pool.observer) if pool.checkpoints else contextlib.nullcontext():
                pool.start()
                trace = pool.watch(life.place.file("trace.arrow"))
        finally:
            pool.end()
        life.heartbeat.beat(Phase.EVALUATING, setup.agenda.updates)
        yield Outcome(trace, pool.seconds, pool.values(), pool.snapshots(trace), pool.core_wait, pool.peak_memory)
    finally:
        pool.close()


class WorkerPool:
    """The worker processes of one run, and the memory and files that they share."""

    def __init__(self, life: Life) -> None:
        self.setup, self.deadline, self.request = setup, deadline, request = life.setup, life.deadline, life.request
        self.workers, self.begin = setup.plan.workers, life.begin
        self.arena = Arena.create(_shape(setup, self.begin))
        self.waiter = Waiter(-1, None, lambda: False, deadline, lambda: "after a death")
        self.processes = processes = list[BaseProcess]()
        self.pipes: list[Connection] = []
        #: Workers that have finished, and workers whose process died; all others still run.
        self.finished: set[int] = set()
        self.dead: set[int] = set()
        self.observer = Observer(life, self.arena, self.finished, self.dead)
        # It refers to the list and not to this pool: within a cycle the arena would stay until a collection of garbage.
        self.diagnosis = Diagnosis(
            self.arena.doing, lambda number: process_state(processes[number]), setup.source, deadline
        )
        self.stillness = Stillness(deadline)
        self.oom_kills = oom_kills()  # before the run
        #: Seconds for which workers could have run but had no core, summed over all workers.
        self.core_wait = 0.0
        #: Bytes that each worker took at most.
        self.peak_memory = [0] * self.workers
        self.snapshot_file = open_snapshots(setup, request, setup.snapshots_every)
        self.scratch = _scratch(setup, request)
        source = setup.source
        self.tensors = SharedTensors(source.tensors) if isinstance(source, TensorSource) else None
        shares_model = setup.plan.traits.whole_model and not isinstance(setup.job.model, nn.Module)
        #: What every worker's model begins from, until all are ready.
        self.initial = SharedTensors(list(state_tensors(setup.module).values())) if shares_model else None
        if self.arena.desk is not None:
            if setup.blueprint is not None:
                for each, memory in zip(stage_shards(setup), self.arena.shards, strict=True):
                    each.put_version_0(memory, setup)
            elif self.begin is None:
                self.arena.put_version_0(setup.module, {})
            else:
                self.arena.resume(self.begin)
        #: None if the run keeps no checkpoints.
        self.checkpoints = (
            LocalCheckpoints(CheckpointManager(setup, request), self.arena, self.waiter) if request else None
        )
        if self.checkpoints is not None:
            self.arena.checkpoints[TAKEN] = self.checkpoints.manager.last
        if life.follower is not None:
            read = self.snapshot_file.read if self.snapshot_file else None
            life.follower.connect(read, self.checkpoints.manager.signals.stop if self.checkpoints else None)
        self.holdings = setup.blueprint.holdings(setup.module) if setup.blueprint else []

    @property
    def seconds(self) -> float:
        """Seconds of training, with those before the run was resumed."""
        return (max(self.arena.ended) - self.observer.origin) / 1e9

    def start(self) -> None:
        """Start every worker, wait until all are ready, and let them begin together."""
        for number in range(self.workers):
            box, memory_bounded = [self._assignment(number)], self.setup.plan.method.memory > 0
            buffer = self.checkpoints.state_buffers[number] if self.checkpoints else None
            process, pipe = start_process(
                main,
                (box, memory_bounded, self.arena, self.tensors, self.initial, self.snapshot_file, buffer),
                duplex=False,
            )
            self.processes.append(process)
            self.pipes.append(pipe)
        self.observer.processes_started([ProcessRecord.of(process.pid or -1) for process in self.processes])
        self._wait_until_ready()
        # Before any worker may begin: the trace has no row from before its origin.
        self.observer.started_at = time.perf_counter_ns()
        if self.checkpoints is not None:
            self.checkpoints.manager.origin = self.observer.origin
        self.arena.control[GO] = 1
        for doorbell in self.arena.doorbells:
            doorbell.ring()

    def _wait_until_ready(self) -> None:
        """Wait until every worker has built its model, or a signal ends the run."""
        ready: set[int] = set()
        notes = dict[str, None]()
        while len(ready | self.dead) < self.workers:
            if self.checkpoints is not None and self.checkpoints.manager.signals.ending:
                raise self.checkpoints.manager.stopped(self.observer)
            for number, message in self._messages():
                if isinstance(message, Died):
                    self._handle_death(number)
                else:
                    ready.add(number)
                    notes |= {message.note: None} if isinstance(message, Ready) and message.note else {}
            self.observer.beat()
        for note in notes:
            warnings.warn(note, JobWarning, stacklevel=2)
        self._close_initial()

    def watch(self, trace_file: Path | None) -> Trace:
        """Observe the workers until all have finished or died."""
        self.observer.training_started(trace_file)
        try:
            while len(self.finished | self.dead) < self.workers:
                for number, message in self._messages():
                    self._handle(number, message)
                if self.checkpoints is None:
                    self.observer.poll(stopping=False)
                else:
                    self._poll(self.checkpoints)
            if not self.finished:
                resume = resume_line(self.request.run, "") if self.request else ""
                raise RunFailed(f"every worker died; nothing was left to finish the run{resume}")
            if self.checkpoints is not None and self.observer.writer is not None:
                last = self.checkpoints.take_last(self.finished)
                if last is not None:
                    self.checkpoints.manager.writer.offer(last, self.observer.writer.sync)
        finally:
            trace = self.observer.close()
        return trace

    def _handle(self, number: int, message: Message) -> None:
        if isinstance(message, Finished):
            self.finished.add(number)
            self.core_wait += message.core_wait / 1e9
            self.peak_memory[number] = message.peak_memory
        elif isinstance(message, Died):
            self._handle_death(number)

    def _poll(self, checkpoints: LocalCheckpoints) -> None:
        """Observe the workers of a run that keeps checkpoints, and take one if it is due."""
        due = checkpoints.take(self.finished)
        checkpoints.manager.signals.check()
        if due is not None:
            checkpoints.manager.save(due, self.observer)
        else:
            checkpoints.manager.follow(self.observer)

    def values(self) -> list[Tensor]:
        """Return the trainable parameters in the module's order, then the moving buffers."""
        if self.setup.blueprint is not None and self.arena.shards:
            return whole_values(self.setup.blueprint, self.setup.names, [each.newest for each in self.arena.shards])
        return self.arena.values(self.setup.names)

    def end(self) -> None:
        """End the processes that still run by SIGKILL, since their further work would be discarded."""
        self.arena.control[ABORT] = 1
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(GONE)
            if process.exitcode is not None:
                process.close()
        for pipe in self.pipes:
            pipe.close()

    def snapshots(self, trace: Trace) -> list[Snapshot]:
        """List the snapshots to evaluate; each is read from its file when it is."""
        return list_snapshots(trace, self.snapshot_file)

    def close(self) -> None:
        """Release everything that the workers shared."""
        if self.checkpoints is not None:
            self.checkpoints.close()
        if self.snapshot_file is not None:
            self.snapshot_file.close()
        if self.scratch is not None:
            self.scratch.cleanup()
        self._close_initial()
        self.arena.close()
        if self.tensors is not None:
            self.tensors.memory.close()

    def _close_initial(self) -> None:
        """Release the parameters that the models began from."""
        if self.initial is not None:
            self.initial.memory.close()
            self.initial = None

    def _assignment(self, number: int) -> bytes:
        """Pickle the assignment of a worker."""
        setup, job = self.setup, self.setup.job
        if setup.blueprint is not None:
            assert setup.pipeline is not None
            mesh = setup.pipeline.mesh(self.workers)
            # A worker is sent what it holds alone: the parameters of other stages would fill its memory, and the pipe.
            module = skeleton(setup.module, self.holdings[mesh.coordinate(number, LAYERS)])
            if setup.blueprint.programs:
                module = sliced(module, setup.blueprint.stored, mesh.coordinate(number, INSIDE))
            job = job.with_(model=module)
        if setup.split is not None:
            place = setup.plan.method.mesh(self.workers).coordinate(number, INSIDE)
            job = job.with_(model=sliced(setup.module, setup.split.stored, place))
        if setup.operators is not None:
            job = job.with_(model=with_operators_of(setup.module, setup.operators, number))
        every = self.request.interval.updates if self.request else 0
        resume_point = ResumePoint(self.begin.updates if self.begin else 0, self.begin is not None, every, at_end=True)
        scratch = Path(self.scratch.name) if self.scratch else None
        return Assignment.of(setup, number, job, scratch, self.deadline, resume_point).pack()

    def _messages(self) -> list[tuple[int, Message]]:
        """Wait up to `POLL` for messages; a pipe that ends before `Finished` means death. Raise the first failure."""
        termination.check()
        self._abandon_stopped()
        numbers = {id(self.pipes[n]): n for n in range(self.workers) if n not in self.finished | self.dead}
        messages: list[tuple[int, Message]] = []
        for pipe in wait([self.pipes[n] for n in numbers.values()], POLL):
            assert isinstance(pipe, Connection)
            try:
                messages.append((numbers[id(pipe)], pipe.recv()))
            except (EOFError, OSError):
                messages.append((numbers[id(pipe)], Died()))
        failed = [(message.report, number) for number, message in messages if isinstance(message, Failed)]
        if failed:
            # The first failure is the cause; the others fail because of it, in whatever order their pipes are read.
            report, number = min(failed, key=lambda pair: pair[0].when)
            victims = self._victims(number)
            stopped = [victim for victim in victims if is_stopped(self.processes[victim].pid or 0)]
            raise self.diagnosis.failed(number, report, victims, stopped)
        return messages

    def _abandon_stopped(self) -> None:
        """End a worker that was stopped for too long where the others go on; elsewhere raise, with its name."""
        running = {self.processes[n].pid: n for n in range(self.workers) if n not in self.finished | self.dead}
        for pid in self.stillness.poll(list(running), goes_on=self.arena.desk is not None):
            number = running[pid]
            if self.arena.desk is None:
                raise self.diagnosis.stopped(number, self._victims(number))
            warnings.warn(
                f"worker {number} was stopped for {self.deadline:g} s (SIGSTOP; its process {pid}): it is ended, and "
                "the others compute what it had begun",
                DeathWarning,
                stacklevel=2,
            )
            self.processes[number].kill()

    def _victims(self, number: int) -> list[int]:
        return [other for other in range(self.workers) if other not in self.finished | self.dead | {number}]

    def _handle_death(self, number: int) -> None:
        """Raise under a plan without a server; otherwise give the dead worker's batch to another one."""
        if self.arena.desk is None:
            ending = Ending.of(self.processes[number], self.oom_kills)
            raise self.diagnosis.died(number, ending, self._victims(number))
        client = number
        if (pipeline := self.setup.pipeline) is not None:  # a replica cannot go on without one of its workers
            size = pipeline.shards(self.workers)
            client = number // size
            others = {client * size + place for place in range(size)} - {number} - self.dead
            for other in others:
                self.processes[other].kill()
            for other in others:
                self.processes[other].join()
                self.observer.worker_died(other)
            self.dead |= others
        self.dead.add(number)
        assert self.arena.desk is not None
        self.arena.desk.handle(Death(client), RecordLock(self.arena.locks, DESK_LOCK, self.waiter, "the desk"))
        for doorbell in self.arena.doorbells:
            doorbell.ring()
        self.observer.worker_died(number)


def _shape(setup: Setup, begin: Checkpoint | None) -> ArenaShape:
    server, versions = setup.plan.method.server, list[VersionShape]()
    if server is not None and setup.blueprint is not None:
        versions = [each.shape(setup) for each in stage_shards(setup)]
    elif server is not None:
        module = setup.fresh_module()
        optimizer = setup.job.make_optimizer(module, list(trainable(module).values()))
        versions = version_shapes(server, setup.layout, trainable(module), optimizer, setup.probe.tables)
    pending_owners = begin.cut.pending_owners if begin and begin.cut else 0
    leases = setup.agenda.leases
    return ArenaShape.of(setup.plan, setup.layout, leases, versions, setup.channels, pending_owners)


def _scratch(setup: Setup, request: CheckpointRequest | None) -> tempfile.TemporaryDirectory[str] | None:
    """Make a folder for the rendezvous file of a process group and for the sockets of loaders.

    It lies in the run's folder, so that SIGKILL to every process leaves nothing in /tmp, unless the path of a socket
    would be too long.
    """
    for stale in request.run.glob("paceline-*") if request else ():  # the run was killed before
        shutil.rmtree(stale)
    loaders = setup.job.num_workers > 0
    if not setup.placement.library and not loaders:
        return None
    near = short_folder() if request is None or (loaders and too_long(request.run)) else request.run
    return tempfile.TemporaryDirectory(prefix="paceline-", dir=near)


# Workers that were stopped, by SIGSTOP, and stay so: no process may wait for them, as under plans with a server.

#: Seconds that count of those between two looks: the parent itself may have been stopped, as by Ctrl-Z.
MOST_BETWEEN = 1.0
#: How many deadlines a worker may be stopped where the others do not go on; who waits for it names it at the first.
LATE = 1.5


class Stillness:
    """Counts for how long each worker has been stopped."""

    def __init__(
        self,
        deadline: float,
        stopped: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline, self._clock, self._stopped = deadline, clock, stopped or is_stopped
        self._seconds: dict[int, float] = {}
        self._looked = clock()

    def poll(self, pids: Sequence[int | None], goes_on: bool) -> list[int]:
        """Return those of these processes that were stopped for too long; `goes_on` is whether a run does without."""
        now = self._clock()
        passed, self._looked = min(MOST_BETWEEN, now - self._looked), now
        stopped = [pid for pid in pids if pid is not None and self._stopped(pid)]
        self._seconds = {pid: self._seconds.get(pid, -passed) + passed for pid in stopped}
        most = self._deadline * (1.0 if goes_on else LATE)
        return [pid for pid, seconds in self._seconds.items() if seconds > most]


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal; one that a debugger has stopped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False
