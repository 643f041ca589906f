"""A worker process of a cluster, from its start to its end."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.connection import Connection
from time import perf_counter_ns as now

import torch

from paceline.data.source import TensorSource
from paceline.engines.cluster.group_client import RankConfig
from paceline.engines.cluster.worker import ClusterWorker
from paceline.engines.workers.arena import Arena
from paceline.engines.workers.assignment import Assignment
from paceline.engines.workers.messages import Failed, FailureReport, Finished
from paceline.engines.workers.process import become_worker, core_wait, memory, trim_heap
from paceline.engines.workers.snapshot_file import SnapshotFile
from paceline.engines.workers.state_buffers import StateBuffer
from paceline.errors.failure import Position
from paceline.links.memory import SharedTensors
from paceline.links.waiting import Cancelled


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
    become_worker(scarce=False)
    before = memory("RssAnon") - len(box[0])
    worker: ClusterWorker | None = None
    try:
        given: Assignment = pickle.loads(box.pop())
        torch.set_num_threads(given.plan.threads)
        source = TensorSource(tensors.open()) if tensors else given.open_data()
        worker = ClusterWorker(given, config, arena, source, snapshots, state_buffer, pipe)
        trim_heap()  # from here on the peak of memory is that of the training
        waited = core_wait()
        worker.train()
        arena.ended[0] = now()
        worker.client.send(Finished(core_wait() - waited, worker.context.peak - before))
        worker.stay()
    except Cancelled:
        pass
    except BaseException as error:
        update = arena.doing[0]
        send = worker.client.send if worker else pipe.send
        send(Failed(FailureReport.of(error, worker.position(update) if worker else Position(update))))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # the kernel closes connections and frees shared memory
