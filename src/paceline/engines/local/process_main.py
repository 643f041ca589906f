"""A worker process of the local engine, from its start to its end."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from time import perf_counter_ns as now

import torch

from paceline.data.source import TensorSource, open_source
from paceline.engines.local.arena import GO, Arena
from paceline.engines.local.assignment import Assignment, FailureReport
from paceline.engines.local.pipeline import PipelineWorker
from paceline.engines.local.process import core_wait, die_with_parent, give_back, memory, quicken, tighten
from paceline.engines.local.snapshots import SnapshotFile
from paceline.engines.local.state_buffers import StateBuffer
from paceline.engines.local.worker import LocalWorker
from paceline.errors.failure import Place
from paceline.links.shared_memory import Cancelled, SharedTensors


def main(
    box: list[bytes],  # the assignment, pickled: taken out, since whoever called keeps what it called with
    scarce: bool,  # memory is
    arena: Arena,
    tensors: SharedTensors | None,
    snapshots: SnapshotFile | None,
    state_buffer: StateBuffer | None,
    pipe: Connection,
) -> None:
    """The process's whole life: ready, go, train, finished; or failed, with the traceback."""
    for each in (signal.SIGINT, signal.SIGTERM):  # also where they are sent to all: the parent decides
        signal.signal(each, signal.SIG_IGN)
    # The forkserver ends with the parent, unless a worker too holds the pipe that tells; and a worker ends with the
    # forkserver.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    die_with_parent()
    tighten() if scarce else quicken()
    give_back()
    before = memory("RssAnon") - len(box[0])
    number, worker = -1, None  # type: int, LocalWorker | PipelineWorker | None
    try:
        assignment: Assignment = pickle.loads(box.pop())
        number = assignment.number
        torch.set_num_threads(assignment.plan.threads)
        if assignment.scratch is not None:
            multiprocessing.current_process()._config["tempdir"] = str(assignment.scratch)  # type: ignore[attr-defined]
        source = TensorSource(tensors.open()) if tensors else open_source(assignment.data, assignment.job.seed)
        kind = LocalWorker if assignment.blueprint is None else PipelineWorker
        worker = kind(assignment, arena, source, snapshots, state_buffer, lambda: pipe.send(("kept",)))
        give_back()  # so that the most memory there will have been is what the training took
        pipe.send(("ready",))
        worker.context.waiter.until(lambda: bool(arena.control[GO]), lambda: "the others to start")
        waited = core_wait()
        worker.train()
        arena.ended[number] = now()
        waited = core_wait() - waited
        if not worker.context.peak:
            worker.context.measure_memory()
        pipe.send(("finished", waited, worker.context.peak - before))
    except Cancelled:
        pass
    except BaseException as error:
        update = arena.doing[number] if number >= 0 else -1
        pipe.send(("failed", FailureReport.of(error, worker.place(update) if worker else Place(update))))
    finally:
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # shared memory has exported views; the kernel takes it all back
