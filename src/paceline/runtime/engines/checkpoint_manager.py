"""The checkpoints of a run, on one machine and on a cluster: when one is due, the thread that writes it, and the end of
a run that a signal has asked to end.

What a checkpoint holds is taken by `local.checkpointing`, `cluster.checkpointing` and `cluster.servers.checkpointing`;
`checkpoints` has the form of the files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator

from torch import Tensor

from paceline.algorithms.server.checkpoint_cut import Cut
from paceline.errors import CheckpointWarning, RunFailed, RunFolderError, RunStopped
from paceline.runtime.engines import checkpoints
from paceline.runtime.engines.checkpoints import Checkpoint, CheckpointRequest
from paceline.runtime.engines.observer import Observer
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.signals import Signals
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.replicas import mean_of
from paceline.training.parameters.worker_state import WorkerState
from paceline.training.splits.slicing import assembled

NICE = 10  # of the thread that writes: workers are to keep their cores, and a checkpoint can wait
#: Seconds without an update after which a run that a signal is to end does so without a checkpoint.
PATIENCE = 30.0
MARGIN = 2  # updates from the furthest worker to the update after which all write their state


class CheckpointManager:
    """Decides when a checkpoint is due, and has it written."""

    def __init__(self, setup: Setup, request: CheckpointRequest) -> None:
        self.setup, self.request = setup, request
        #: What signals, and the clock, have requested.
        self.signals = Signals()
        #: When the training began, less the nanoseconds that it took before the run was resumed.
        self.origin = 0
        self.writer = Writer(self._write)
        #: The updates of the newest checkpoint, and when it was taken; those of the newest that is written.
        self.last = self._written = request.start.updates if request.start else 0
        self._taken_at = time.monotonic()
        #: What the workers were doing when that last changed, or when the signal came that ends the run.
        self._moved: tuple[list[int], float] = ([], 0.0)

    @property
    def requested(self) -> bool:
        """Whether a signal or the clock has requested a checkpoint that is not taken yet."""
        self.writer.warn()
        seconds = self.request.interval.seconds
        if seconds and time.monotonic() - self._taken_at >= seconds:
            self.signals.requested = True
        return self.signals.requested

    def due(self, done: int) -> bool:
        """Whether a checkpoint is due after so many updates: it was requested, or its interval is over."""
        every = self.request.interval.updates
        return self.requested or bool(every and done // every > self.last // every)

    def checkpoint(
        self, updates: int, holders: dict[str, WorkerState], cut: Cut | None = None, at: int | None = None
    ) -> Checkpoint:
        """Return a checkpoint of these states, which were taken `at` this time, or now."""
        nanoseconds = (time.perf_counter_ns() if at is None else at) - self.origin
        return Checkpoint(updates, nanoseconds, self.request.lives, cut, holders)

    def save(self, checkpoint: Checkpoint, observer: Observer) -> None:
        """Have a checkpoint written, when the trace holds every row that led to it; end the run if a signal asked so.

        Raises:
            RunStopped: it was the last one.
        """
        self.last, self._taken_at, self.signals.requested = checkpoint.updates, time.monotonic(), False
        observer.poll(stopping=bool(self.signals.ending))
        assert observer.writer is not None
        self.writer.offer(checkpoint, observer.writer.sync)
        if self.signals.ending:
            self.writer.flush()
            raise self.stopped(observer)

    def follow(self, observer: Observer) -> None:
        """Report the progress; end a run that a signal is to end if its workers do not move any longer."""
        ending = bool(self.signals.ending)
        observer.poll(stopping=ending)
        doing, now = list(observer.workers.doing), time.monotonic()
        if not ending or doing != self._moved[0]:
            self._moved = doing, now
        if (still := now - self._moved[1]) > PATIENCE:
            raise self.stopped(observer, f"no update was finished in {still:.0f} s")

    def stopped(self, observer: Observer, why: str = "") -> RunStopped:
        """Return the end of a run that a signal has asked to end; `why` it ended without a checkpoint, if it did."""
        run = str(self.request.run)
        loss = observer.writer.so_far().newest_loss if observer.writer is not None else None  # before the training
        return RunStopped(self.signals.ending, self._written, self.setup.agenda.updates, loss, run, why)

    @contextlib.contextmanager
    def listening(self, observer: Observer) -> Iterator[None]:
        """Handle signals within the block. Once one was sent, whatever ends the run after it is a stop.

        Processes that are asked to end at once see each other end, in any order: those are no failures.
        """
        with self.signals.listening():
            try:
                yield
            except (RunFailed, RunFolderError) as error:
                if not self.signals.sent:
                    raise
                raise self.stopped(observer, str(error).splitlines()[0]) from error

    def close(self) -> None:
        self.writer.close()

    def _write(self, checkpoint: Checkpoint, sync_trace: Callable[[], None]) -> None:
        sync_trace()
        checkpoints.write(self.request.run, checkpoint, model_of(self.setup, checkpoint))
        self._written = checkpoint.updates


class Writer:
    """A thread that writes checkpoints. If the disk is too slow, it leaves out all but the newest one."""

    def __init__(self, write: Callable[[Checkpoint, Callable[[], None]], None]) -> None:
        self._write, self._changed = write, threading.Condition()
        self._next: tuple[Checkpoint, Callable[[], None]] | None = None
        self._busy = self._end = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-checkpoints")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written or waits to be."""
        return self._busy or self._next is not None

    def offer(self, checkpoint: Checkpoint, sync_trace: Callable[[], None]) -> None:
        """Hand over a checkpoint; one that still waits is replaced by it."""
        with self._changed:
            self._next = (checkpoint, sync_trace)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the last checkpoint is written; RunFolderError if it could not be."""
        with self._changed:
            self._changed.wait_for(lambda: not self.busy)
        if self._error is not None:
            raise RunFolderError(f"the last checkpoint could not be written: {self._error}") from self._error

    def warn(self) -> None:
        """Warn of a checkpoint that could not be written. The run goes on, and the last good one stays."""
        error, self._error = self._error, None
        if error is not None:
            warnings.warn(
                f"a checkpoint could not be written ({type(error).__name__}: {error}); the run goes on, and the last "
                "good checkpoint is kept",
                CheckpointWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        with self._changed:
            self._end = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        """Write the newest checkpoint on offer, until the writer is closed."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._end)
                if self._next is None:
                    return
                pending, self._next, self._busy = self._next, None, True
            try:
                self._write(*pending)
                self._error = None
            except Exception as error:
                self._error = error
            with self._changed:
                self._busy = False
                self._changed.notify_all()


def model_of(setup: Setup, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Make a `state_dict` of the model with the parameters and buffers of a checkpoint."""
    module, model, visited = setup.module, dict[str, Tensor](), set[int]()
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    made_of = [*trainable(module).values(), *(tensors[name] for name in setup.probe.moving)]
    by_id = {id(old): new for old, new in zip(made_of, result_of(setup, checkpoint), strict=True)}
    for name, old in module.state_dict(keep_vars=True).items():
        new = by_id.get(id(old), old.detach())
        if not old.is_floating_point() and new.is_floating_point():
            new = new.round()
        new = new.to("cpu", old.dtype)
        model[name] = new.clone() if id(old) in visited else new  # tied weights have two names
        visited.add(id(old))
    return model


def result_of(setup: Setup, checkpoint: Checkpoint) -> list[Tensor]:
    """Return the trainable parameters, then the moving buffers, of the model at this checkpoint."""
    plan = setup.plan
    if setup.blueprint is not None:
        stored, shapes, workers = setup.blueprint.stored, setup.blueprint.shapes, checkpoint.workers()
        first = workers[: len(workers) // setup.pipeline.spread.data] if setup.pipeline is not None else workers
        named = {name: [w.tensors[name] for w in first if name in w.tensors] for name in setup.names}
        return [assembled(named[name], stored.get(name), shapes.get(name, ())) for name in setup.names]
    if setup.split is not None:
        parts = [mine.many("values") for mine in checkpoint.workers()[: setup.split.program.workers]]
        stored, shapes = setup.split.stored, setup.split.shapes
        return [assembled([m[n] for m in parts], stored.get(name), shapes[name]) for n, name in enumerate(setup.names)]
    if checkpoint.cut is None:
        workers = checkpoint.workers()[: plan.results]
        return mean_of([_result(setup, mine) for mine in workers])
    flats = [[holder.tensors["values"]] for name, holder in checkpoint.holders.items() if name.startswith("replica")]
    if flats:
        return mean_of([setup.layout.collect(flat, setup.names) for flat in flats])
    values = [checkpoint.holders[f"shard.{n}"].tensors["values"] for n in range(plan.shards)]
    return setup.layout.collect(values, setup.names)


def _result(setup: Setup, mine: WorkerState) -> list[Tensor]:
    values, averaging = mine.many("values"), setup.plan.method.averaging
    if averaging is None:
        return values
    count = len(trainable(setup.module))
    memories = mine.remembered("rule", count)
    return [*(averaging.result(v, m) for v, m in zip(values, memories, strict=False)), *values[count:]]
