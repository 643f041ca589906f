"""The parent of a local run: starts the workers, watches them, drains their traces, and decides what a death means."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import re
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.core.server.events import Death
from paceline.data.source import TensorSource
from paceline.engines.checkpoints import Checkpoint, history
from paceline.engines.local.arena import ABORT, DESK_LOCK, GO, Arena, ArenaShape
from paceline.engines.local.assignment import Assignment, FailureReport
from paceline.engines.local.checkpointing import CheckpointCoordinator
from paceline.engines.local.forkserver import interrupts_wait, prepare, short_folder, too_long
from paceline.engines.local.process import oom_kills, state_of
from paceline.engines.local.process_main import main
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.state_buffers import ResumePoint
from paceline.engines.setup import CheckpointRequest, Outcome, Progress, Setup, Snapshot
from paceline.errors import JobError, RunFailed, RunStopped, WorkerDied, WorkerFailed, WorkerSilent
from paceline.errors.failure import Failure, Place
from paceline.gradients.pickling import pack
from paceline.links.shared_memory import Doorbell, RecordLock, SharedTensors, Waiter
from paceline.parameters.layout import trainable
from paceline.runs.trace import Kind, Row, Trace, TraceWriter
from paceline.stages.segment import skeleton

HEARTBEAT = 0.1  # seconds between two looks at the workers


@contextlib.contextmanager
def train(
    setup: Setup,
    trace_file: Path | None,
    progress: Progress | None,
    deadline: float,
    request: CheckpointRequest | None = None,
) -> Iterator[Outcome]:
    """Run the plan on processes of this machine. Whatever happens, nothing is left behind."""
    pool = WorkerPool(setup, deadline, request)
    try:
        try:
            with pool.keeping.listening() if pool.keeping else contextlib.nullcontext():
                pool.start()
                trace = pool.watch(trace_file, progress)
        finally:
            pool.end()
        yield Outcome(trace, pool.seconds, pool.values(), pool.snapshots(trace), pool.core_wait, pool.peaks)
    finally:
        pool.close()


class WorkerPool:
    """The workers of one run."""

    def __init__(self, setup: Setup, deadline: float, request: CheckpointRequest | None) -> None:
        self.setup, self.deadline, self.request = setup, deadline, request
        self.workers, self.begin = setup.plan.workers, request.start if request else None
        self.arena = Arena.create(_shape(setup, self.begin))
        self.doorbells = [
            Doorbell(a, b.descriptor) for a, b in zip(self.arena.asleep, self.arena.doorbells, strict=True)
        ]
        self.waiter = Waiter(-1, None, lambda: False, deadline, lambda: "after a death")
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self.home: set[int] = set()
        self.dead: set[int] = set()
        self.death_rows: list[tuple[int, int]] = []  # (worker, when), not yet in the trace
        self.started_at = 0
        self.oom_kills = oom_kills()
        self.core_wait = 0.0  # seconds, of all workers together
        self.peaks = [0] * self.workers  # bytes
        source = setup.source
        self.snapshot_file = _snapshot_file(setup, request)
        for left in request.run.glob("paceline-*") if request else ():  # by a life that was killed
            shutil.rmtree(left)
        # Where PyTorch's own processes meet, and where loaders keep what SIGKILL would have them leave behind.
        wanted = bool(setup.placement.library) or setup.job.loader_workers > 0
        # In the run's folder, so that SIGKILL to all leaves nothing in /tmp; loaders make sockets, for which it may be
        # too deep.
        near = (
            short_folder() if request is None or (setup.job.loader_workers and too_long(request.run)) else request.run
        )
        self.scratch = tempfile.TemporaryDirectory(prefix="paceline-", dir=near) if wanted else None
        self.tensors = SharedTensors(source.tensors) if isinstance(source, TensorSource) else None
        if self.arena.desk is not None:
            if self.begin is None:
                self.arena.put_version_0(setup.module, {})
            else:
                self.arena.resume(self.begin)
        self.keeping = CheckpointCoordinator(setup, self.arena, request, self.waiter) if request else None
        self.holdings = setup.blueprint.holdings(setup.module) if setup.blueprint else []

    @property
    def seconds(self) -> float:
        return (max(self.arena.ended) - self.origin) / 1e9

    @property
    def origin(self) -> int:
        """When the training began, had it been trained without a break."""
        return self.started_at - (self.begin.nanoseconds if self.begin else 0)

    def start(self) -> None:
        """Start every worker, wait until all are ready, and let them go together."""
        context = multiprocessing.get_context("forkserver")
        with _nameless_main():
            prepare()
            for number in range(self.workers):
                mine, theirs = context.Pipe(duplex=False)
                state_buffer = self.keeping.buffers_of_state[number] if self.keeping else None
                process = context.Process(
                    target=main,
                    args=(
                        [self._assignment(number)],
                        self.setup.pipeline is not None and self.setup.pipeline.memory > 0,
                        self.arena,
                        self.tensors,
                        self.snapshot_file,
                        state_buffer,
                        theirs,
                    ),
                )
                with interrupts_wait():
                    process.start()
                theirs.close()
                self.processes.append(process)
                self.pipes.append(mine)
        ready: set[int] = set()
        while len(ready | self.dead) < self.workers:
            for number, message in self._messages(None):
                if message[0] == "died":
                    self._handle_death(number)
                else:
                    ready.add(number)
        self.started_at = time.perf_counter_ns()
        if self.keeping is not None:
            self.keeping.origin = self.origin
        self.arena.control[GO] = 1
        for doorbell in self.doorbells:
            doorbell.ring()

    def watch(self, trace_file: Path | None, progress: Progress | None) -> Trace:
        """Until everybody is home: drain traces, report progress, react to deaths."""
        earlier = None
        if trace_file is not None and self.begin is not None:
            earlier = history(Trace.open(trace_file), self.begin, self.setup.agenda)
        writer = TraceWriter(trace_file, self.origin, earlier)
        try:
            while len(self.home | self.dead) < self.workers:
                for number, message in self._messages(HEARTBEAT):
                    if message[0] == "finished":
                        self.home.add(number)
                        self.core_wait += message[1] / 1e9
                        self.peaks[number] = message[2]
                    elif message[0] == "died":
                        self._handle_death(number)
                due = self.keeping.take(self.home) if self.keeping else None
                self._drain(writer, progress)
                if due is not None:
                    self._keep(due, writer)
            if not self.home:
                raise RunFailed("every worker died; nothing was left to finish the run")
        finally:
            self._drain(writer, None)
            trace = writer.close()
        return trace

    def _keep(self, due: Checkpoint, writer: TraceWriter) -> None:
        """Everything that led to it is in the trace now: let it be written."""
        assert self.keeping is not None
        self.keeping.writer.offer(due, writer.sync)
        if self.keeping.ending:
            self.keeping.writer.flush()
            _, losses = writer.so_far().loss_curve()
            loss = float(losses[-1]) if len(losses) else math.nan
            run = str(self.keeping.request.run)
            raise RunStopped(self.keeping.ending, due.updates, self.setup.agenda.updates, loss, run)

    def values(self) -> list[Tensor]:
        """Trainable parameters in the module's order, then moving buffers."""
        return self.arena.values(self.setup.names)

    def end(self) -> None:
        """End what still runs. SIGKILL at once: whatever they still did would be thrown away."""
        self.arena.control[ABORT] = 1
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(2)
            process.close()
        for pipe in self.pipes:
            pipe.close()

    def snapshots(self, trace: Trace) -> list[Snapshot]:
        if self.snapshot_file is None:
            return []
        rows = trace.of_kind(Kind.SNAPSHOT)
        return [
            Snapshot(int(r["update"]), float(r["start"]) / 1e9, partial(self.snapshot_file.read, int(r["update"])))
            for r in rows
        ]

    def close(self) -> None:
        if self.keeping is not None:
            self.keeping.close()
        if self.snapshot_file is not None:
            self.snapshot_file.close()
        if self.scratch is not None:
            self.scratch.cleanup()
        self.arena.close()
        if self.tensors is not None:
            self.tensors.memory.close()

    def _assignment(self, number: int) -> bytes:
        setup, job = self.setup, self.setup.job
        data = job.data if self.tensors is None else None
        if setup.blueprint is not None:
            job = job.with_(model=skeleton(setup.module, self.holdings[number]))
        given = Assignment(
            number, job.with_(data=None, test=None), setup.plan, setup.agenda, setup.probe.moving, setup.placement,
            data, len(setup.source), setup.initial_sha256,
            Path(self.scratch.name) if self.scratch else None, self.deadline,
            ResumePoint(
                self.begin.updates if self.begin else 0, self.begin is not None,
                self.request.every if self.request else 0,
            ),
            setup.blueprint,
        )  # fmt: skip
        try:
            pickled: bytes = pack(given)
        except Exception as error:
            raise JobError(
                f"the job cannot be sent to another process: {error}. Something in its model, loss, optimizer or data "
                "holds a thing of this process only (an open file, a lock, a generator); make it inside a function"
            ) from error
        return pickled

    def _messages(self, timeout: float | None) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """What workers said; a pipe that ends before "finished" means death. The first failure is raised."""
        numbers = {id(self.pipes[n]): n for n in range(self.workers) if n not in self.home | self.dead}
        said: list[tuple[int, tuple[Any, ...]]] = []
        for pipe in wait([self.pipes[n] for n in numbers.values()], timeout):
            assert isinstance(pipe, Connection)
            try:
                said.append((numbers[id(pipe)], pipe.recv()))
            except (EOFError, OSError):
                said.append((numbers[id(pipe)], ("died",)))
        failed = [(message[1], number) for number, message in said if message[0] == "failed"]
        if failed:
            raise self._failed(*min(failed, key=lambda pair: pair[0].when))
        yield from said

    def _failed(self, account: FailureReport, number: int) -> RunFailed:
        late = re.fullmatch(r"worker (\d+)", account.waited_for)
        if late:
            return self._silent(int(late[1]), number)
        if account.alone:
            return RunFailed(account.what)
        failure = Failure(number, f"failed first: {account.what}", account.place, self._victims(number))
        failure.traceback, failure.advice = account.traceback, account.advice
        return WorkerFailed(failure)

    def _silent(self, number: int, waiting: int) -> WorkerSilent:
        """Somebody waited for it, past the deadline."""
        process = self.processes[number]
        what = (
            f"did not come: worker {waiting} waited {self.deadline:.0f} s for it. "
            f"Its process {process.pid} {state_of(process.pid)}"
        )
        advice = "give a longer deadline (deadline=..., --deadline) if a step really takes that long"
        return WorkerSilent(Failure(number, what, Place(self.arena.doing[number]), self._victims(number), advice))

    def _victims(self, number: int) -> list[int]:
        return [other for other in range(self.workers) if other not in self.home | self.dead | {number}]

    def _death(self, number: int) -> WorkerDied:
        process = self.processes[number]
        process.join(1)
        code = process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        advice = "under a plan with a server (downpour, ssp, ...) the others would have finished its work"
        if how == "SIGKILL" and oom_kills() > self.oom_kills:
            advice = f"the kernel's out-of-memory killer has struck: a smaller batch_size, or fewer workers; {advice}"
        elif how == "SIGKILL":
            advice = f"nobody knows who sent it; the kernel, when memory runs out, tells `dmesg`; {advice}"
        failure = Failure(number, f"died ({how})", Place(self.arena.doing[number]), self._victims(number), advice)
        return WorkerDied(failure)

    def _handle_death(self, number: int) -> None:
        """Under an asynchronous plan the others go on: give the dead worker's batch to one of them."""
        death = self._death(number)
        if self.arena.desk is None:
            raise death
        self.dead.add(number)
        assert self.arena.desk is not None
        self.arena.desk.handle(Death(number), RecordLock(self.arena.locks, DESK_LOCK, self.waiter, "the desk"))
        for doorbell in self.doorbells:
            doorbell.ring()
        self.death_rows.append((number, time.perf_counter_ns()))

    def _drain(self, writer: TraceWriter, progress: Progress | None) -> None:
        rows = [ring.drain() for ring in self.arena.traces]
        for number, when in self.death_rows:
            at = max(when, self.started_at)
            rows.append(Trace.of([Row(Kind.DEATH, number, self.arena.doing[number], start=at, end=at)]).rows)
        self.death_rows.clear()
        for part in rows:
            writer.append(part)
        if progress is None:
            return
        losses = [r["value"][(r["kind"] == Kind.COMPUTE) & (r["samples"] > 0)] for r in rows]
        latest = [float(values[-1]) for values in losses if len(values)]
        began = self.begin.updates if self.begin else 0
        done = max(began, max(self.arena.doing) + 1)
        progress(
            {
                "updates": done,
                "of": self.setup.agenda.updates,
                "seconds": (time.perf_counter_ns() - self.origin) / 1e9,
                "resumed_from": began,  # updates that earlier lives of the run had made
                "began": (self.started_at - self.origin) / 1e9,  # with this life of the run
                "samples": self.setup.agenda.samples_until(done),
                "loss": sum(latest) / len(latest) if latest else None,
                "dead": sorted(self.dead),
                "home": sorted(self.home),
                "workers": self.workers,
                "in_step": self.setup.plan.traits.keeps_step,
                "ending": bool(self.keeping and self.keeping.ending),
                "asleep": [number for number, flag in enumerate(self.arena.asleep) if flag[0]],
                "offers": [offer[0] for offer in self.arena.offers],
                "rows": rows,  # of the trace, since the last time
            }
        )


def _shape(setup: Setup, begin: Checkpoint | None) -> ArenaShape:
    module = setup.fresh_module()
    optimizer = setup.job.make_optimizer(module, list(trainable(module).values()))
    ghosts = begin.cut.ghosts if begin and begin.cut else 0
    return ArenaShape.of(
        setup.plan, setup.layout, setup.agenda.leases, trainable(module), optimizer, setup.probe.tables, ghosts,
        setup.blueprint,
    )  # fmt: skip


def _snapshot_file(setup: Setup, request: CheckpointRequest | None) -> SnapshotFile | None:
    if not setup.snapshots_every:
        return None
    tensors = {**trainable(setup.module), **dict(setup.module.named_buffers())}
    shapes = {name: tuple(tensors[name].shape) for name in setup.names}
    named = request.run / "snapshots.bin" if request else None
    return SnapshotFile(shapes, setup.layout.dtype, setup.snapshots_every, named)


@contextlib.contextmanager
def _nameless_main() -> Iterator[None]:
    """Start processes without importing the user's script again in each.

    multiprocessing would run the script of `python train.py` once more per worker, so that every script needed an
    `if __name__ == "__main__"`. What workers need of it travels by value (cloudpickle) instead.
    """
    real = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = real
