"""A worker process of a cluster, from its start to its end."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from time import perf_counter_ns as now

import torch

from paceline.errors.failure import Position
from paceline.runtime.engines.cluster.group_client import RankConfig
from paceline.runtime.engines.cluster.worker import ClusterWorker
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.messages import Assignment, worker_process
from paceline.runtime.engines.workers.process import trim_heap
from paceline.runtime.engines.workers.state_buffers import SnapshotFile, StateBuffer
from paceline.runtime.links.memory import SharedTensors


def main(
    box: list[bytes],  # holds the pickled assignment; popped here, since multiprocessing keeps the arguments alive
    config: RankConfig,
    arena: Arena,
    tensors: SharedTensors | None,
    snapshots: SnapshotFile | None,
    state_buffer: StateBuffer | None,
    pipe: Connection,
) -> None:
    """Run one worker: prepare, train with the others, and stay until the run is done. Never returns."""
    with worker_process(pipe, len(box[0])) as report:
        report.position = lambda: Position(arena.doing[0])
        assignment: Assignment = pickle.loads(box.pop())
        torch.set_num_threads(assignment.plan.threads)
        worker = ClusterWorker(assignment, config, arena, assignment.open_data(tensors), snapshots, state_buffer, pipe)
        report.send, report.position = worker.client.send, lambda: worker.position(arena.doing[0])
        trim_heap()  # from here on the peak of memory is that of the training
        report.begin()
        worker.train()
        arena.ended[0] = now()
        report.finished(worker.context.peak)
        worker.stay()
