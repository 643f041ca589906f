"""NativeDdp: the same chunks in the same processes, but PyTorch's DistributedDataParallel sums gradients."""

from __future__ import annotations

import math
from time import perf_counter_ns as now

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core.agenda import Chunk
from paceline.data.source import Reader
from paceline.engines.workers.arena import Arena
from paceline.engines.workers.methods.runner import PlanRunner
from paceline.engines.workers.read_ahead import ddp_chunks
from paceline.errors import NotFinite, WaitedTooLong
from paceline.gradients.replica import Replica
from paceline.jobs.job import Batch
from paceline.runs.trace import Kind


class _Step(nn.Module):
    """The job's step, which DistributedDataParallel wraps instead of the model: so it has the model as it is."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.module, self.replica = replica.module, replica

    def forward(self, chunk: Chunk, batch: Batch) -> Tensor:
        return self.replica.forward(self.module, chunk, batch)


def train_by_ddp(
    runner: PlanRunner, reader: Reader, arena: Arena, deadline: float, some_unused: bool
) -> DistributedDataParallel:
    """Train under DistributedDataParallel; the caller keeps the wrapped model alive until the process ends."""
    try:
        return _train(runner, reader, some_unused)
    except RuntimeError as error:
        if "Timed out waiting" not in str(error):
            raise
        number, doing = runner.number, list(arena.doing)
        where = f"in update {doing[number]}"
        raise WaitedTooLong(number, _slowest(number, doing), deadline, where) from error


def _slowest(me: int, doing: list[int]) -> str:
    """Name the worker that this one waited for: the one that is in the earliest update, if it is the only one."""
    others = [n for n in range(len(doing)) if n != me]
    late = [n for n in others if doing[n] == min(doing[o] for o in others)]
    return f"worker {late[0]}" if len(late) == 1 else "the others"


def _train(runner: PlanRunner, reader: Reader, some_unused: bool) -> DistributedDataParallel:
    """Run PyTorch's own training loop."""
    workers, replica, job, store = runner.plan.workers, runner.replica, runner.job, runner.local_store()
    state, pace = runner.resume(store), store.schedule
    wrapped = DistributedDataParallel(_Step(replica), find_unused_parameters=some_unused)
    for update in runner.updates_ahead():
        runner.doing(update)
        start, losses, samples = now(), 0.0, 0
        runner.optimizer.zero_grad()
        mine = runner.agenda.mine(update, runner.number)
        chunks = ddp_chunks(runner.agenda, update, runner.number)
        for number, chunk in enumerate(chunks):
            batch = reader.batch(chunk)
            wrapped.require_backward_grad_sync = number == len(chunks) - 1
            loss = wrapped(chunk, batch)
            (loss * (chunk.weight * workers * bool(mine))).backward()
            losses, samples = losses + float(loss.detach()) * chunk.samples, samples + chunk.samples * bool(mine)
        if job.on_nan == "stop" and not math.isfinite(losses):
            raise NotFinite(losses, update, reader.order.indices(chunks[0]).tolist())
        runner.meter.before_step([p.grad for p in replica.parameters], update)
        if job.gradient_clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(replica.parameters, job.gradient_clip_norm)
        mean = losses / max(samples, 1)
        runner.record(Kind.COMPUTE, update, -1, update, -1, start, now(), 0, samples, 0, mean)
        start = now()
        pace.advance(update)
        runner.optimizer.step()
        runner.applied(update, update, update + 1, start)
        if runner.group.leads:
            runner.snapshot(update + 1, runner.values)
        runner.state_writer.in_step(update, update + 1, state)
    runner.write_result(runner.values())
    # Destroying the process group or the DDP object sometimes hangs (torch 2.13, gloo): the process ends with both.
    dist.barrier()
    return wrapped
