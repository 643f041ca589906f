"""PyTorch's own DistributedDataParallel over gloo or NCCL, for comparison: the same chunks, the same processes, its
meeting.
"""

from __future__ import annotations

import math
from time import perf_counter_ns as now
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import NotFinite, WaitedTooLong
from paceline.runs.trace import Kind

if TYPE_CHECKING:
    from paceline.engines.local.worker import LocalWorker


def train_by_ddp(worker: LocalWorker) -> None:
    try:
        _train(worker)
    except RuntimeError as error:
        if "Timed out waiting" not in str(error):
            raise
        doing, where = list(worker.arena.doing), f"in update {worker.arena.doing[worker.number]}"
        raise WaitedTooLong(worker.number, _slowest(worker.number, doing), worker.given.deadline, where) from error


def _slowest(me: int, doing: list[int]) -> str:
    """Whom this worker waited for, where the updates that all are in tell it."""
    others = [n for n in range(len(doing)) if n != me]
    late = [n for n in others if doing[n] == min(doing[o] for o in others)]
    return f"worker {late[0]}" if len(late) == 1 else "the others"


def _train(worker: LocalWorker) -> None:
    workers, agenda, replica = worker.plan.workers, worker.agenda, worker.replica
    home = worker.local_store()
    own = worker.go_on(home)
    wrapped = DistributedDataParallel(replica.module)
    pace = home.pace
    for update in worker.ahead:
        worker.arena.doing[worker.number] = update
        start, losses, samples = now(), 0.0, 0
        worker.optimizer.zero_grad()
        # One pass per update on every rank, whatever falls to it: DDP meets in each backward.
        chunks = agenda.mine(update, worker.number) or [agenda.filled(update)[0]]
        mine = len(agenda.mine(update, worker.number)) > 0
        for number, chunk in enumerate(chunks):
            batch = worker.reader.batch(chunk)
            wrapped.require_backward_grad_sync = number == len(chunks) - 1
            loss = replica.forward(wrapped, chunk, batch)
            (loss * (chunk.weight * workers * mine)).backward()
            losses, samples = losses + float(loss.detach()) * chunk.samples, samples + chunk.samples * mine
        if worker.job.on_nan == "stop" and not math.isfinite(losses):
            raise NotFinite(losses, update, worker.reader.order.indices(chunks[0]).tolist())
        if worker.job.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(replica.parameters, worker.job.clip_norm)
        worker.record(Kind.COMPUTE, update, -1, update, -1, start, now(), 0, samples, 0, losses / max(samples, 1))
        start = now()
        pace.advance(update)
        worker.optimizer.step()
        worker.record(Kind.APPLY, update, 0, update, update + 1, start, now(), 0, 0, 0, 0.0)
        if worker.number == 0:
            worker.snapshot(update + 1, worker.values)
        worker.state_writer.in_step(update, update + 1, own)
    worker.hand_in(worker.values())
    # Ending the group, or DDP's own destructor, now and then waits for ever (torch 2.13, gloo). The process ends
    # instead.
    dist.barrier()
    worker.kept_alive = wrapped
