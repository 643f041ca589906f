"""A worker process of the local engine, from its start to its end."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from time import perf_counter_ns as now

import torch

from paceline.errors.failure import Position
from paceline.runtime.engines.workers.arena import GO, Arena
from paceline.runtime.engines.workers.dataflow import DataflowWorker
from paceline.runtime.engines.workers.messages import Assignment, Ready, StateLeft, worker_process
from paceline.runtime.engines.workers.pipeline import PipelineWorker
from paceline.runtime.engines.workers.process import trim_heap
from paceline.runtime.engines.workers.splits import SplitWorker
from paceline.runtime.engines.workers.state_buffers import SnapshotFile, StateBuffer
from paceline.runtime.engines.workers.worker import LocalWorker, station_of
from paceline.runtime.links.memory import SharedTensors

AnyWorker = LocalWorker | PipelineWorker | SplitWorker | DataflowWorker
#: The kind of worker, by what it holds of the model.
KINDS: dict[str, type[AnyWorker]] = {
    "replica": LocalWorker,
    "stages": PipelineWorker,
    "parts": SplitWorker,
    "operators": DataflowWorker,
}


def main(
    box: list[bytes],  # holds the pickled assignment; popped here, since multiprocessing keeps the arguments alive
    memory_bounded: bool,  # whether memory is bounded
    arena: Arena,
    tensors: SharedTensors | None,
    initial: SharedTensors | None,
    snapshots: SnapshotFile | None,
    state_buffer: StateBuffer | None,
    pipe: Connection,
) -> None:
    """Run one worker: prepare, wait for the start, train, and send the outcome. Never returns."""
    with worker_process(pipe, len(box[0]), memory_bounded) as report:
        assignment: Assignment = pickle.loads(box.pop())
        number, assignment.initial = assignment.number, initial
        report.position = lambda: Position(arena.doing[number])
        torch.set_num_threads(assignment.plan.threads)
        if assignment.scratch is not None:
            multiprocessing.current_process()._config["tempdir"] = str(assignment.scratch)  # type: ignore[attr-defined]
        source = assignment.open_data(tensors)
        station = station_of(assignment, arena, snapshots, state_buffer, lambda: pipe.send(StateLeft()))
        worker = KINDS[assignment.plan.traits.holds](assignment, arena, source, snapshots, station)
        report.position = lambda: worker.position(arena.doing[number])
        trim_heap()  # from here on the peak of memory is that of the training
        pipe.send(Ready(assignment.note))
        worker.context.waiter.until(lambda: bool(arena.control[GO]), lambda: "the others to start")
        report.begin()
        worker.train()
        arena.ended[number] = now()
        if not worker.context.peak:
            worker.context.measure_memory()
        report.finished(worker.context.peak)
