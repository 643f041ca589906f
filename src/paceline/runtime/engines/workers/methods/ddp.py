"""NativeDdp: the same chunks in the same processes, but PyTorch's DistributedDataParallel sums gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from time import perf_counter_ns as now

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.algorithms.agenda import Chunk
from paceline.errors import NotFinite, WaitedTooLong
from paceline.runtime.engines.workers.arena import Arena
from paceline.runtime.engines.workers.methods.runner import PlanRunner, ddp_chunks
from paceline.runtime.runs.trace import Kind
from paceline.training.data.source import Reader
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch


class _WrappedStep(nn.Module):
    """The job's step, which DistributedDataParallel wraps instead of the model: so it has the model as it is."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.module, self.replica = replica.module, replica

    def forward(self, chunk: Chunk, batch: Batch, weight: float) -> Tensor:
        if not weight:  # the loss would be divided by 0, and the other workers wait for these gradients
            return sum((p.sum() for p in self.replica.parameters), torch.zeros(())) * 0.0
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


def _weighed(
    replica: Replica, reader: Reader, chunks: list[Chunk], counts: bool
) -> tuple[Iterable[tuple[Chunk, Batch, float]], float]:
    """Return the chunks with their batches and weights, and the weight of the whole update over all workers."""
    if replica.job.loss_denominator is None:
        return ((chunk, reader.batch(chunk), chunk.weight * counts) for chunk in chunks), 1.0
    batches = [(chunk, reader.batch(chunk)) for chunk in chunks]
    weighed = [(chunk, batch, replica.chunk_weight(chunk, batch) * counts) for chunk, batch in batches]
    global_weight = torch.tensor(sum(weight for _, _, weight in weighed), dtype=torch.float64)
    dist.all_reduce(global_weight)  # DDP averages over workers, whatever number each loss was divided by
    return weighed, float(global_weight) or 1.0


def _lay_out(module: nn.Module) -> None:
    """Lay buffers out in the usual order: DDP cannot broadcast one that was transposed or expanded."""
    for buffer in module.buffers():
        usual = torch.empty_like(buffer, memory_format=torch.contiguous_format)
        if usual.stride() != buffer.stride():
            buffer.data = usual.copy_(buffer)


def _train(runner: PlanRunner, reader: Reader, some_unused: bool) -> DistributedDataParallel:
    """Run PyTorch's own training loop."""
    workers, replica, job, store = runner.plan.workers, runner.replica, runner.job, runner.local_store()
    state, pace = runner.resume(store), store.schedule
    _lay_out(replica.module)
    wrapped = DistributedDataParallel(_WrappedStep(replica), find_unused_parameters=some_unused)
    for update in runner.updates_ahead():
        runner.doing(update)
        start, losses, total = now(), 0.0, 0.0
        runner.optimizer.zero_grad()
        mine = runner.agenda.mine(update, runner.number)
        chunks = ddp_chunks(runner.agenda, update, runner.number)
        weighed, global_weight = _weighed(replica, reader, chunks, bool(mine))
        for number, (chunk, batch, weight) in enumerate(weighed):
            wrapped.require_backward_grad_sync = number == len(chunks) - 1
            loss = wrapped(chunk, batch, weight or chunk.weight * (job.loss_denominator is None))
            (loss * (weight / global_weight * workers)).backward()
            losses, total = losses + weight * float(loss.detach()), total + weight
        if job.on_nan == "stop" and not math.isfinite(losses):
            raise NotFinite(losses, update, reader.order.indices(chunks[0]).tolist())
        runner.meter.before_step([p.grad for p in replica.parameters], update)
        if job.gradient_clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(replica.parameters, job.gradient_clip_norm)
        samples, mean = sum(chunk.samples for chunk in mine), losses / total if total else math.nan
        stated = -1.0 if job.loss_denominator is None else total
        runner.record(Kind.COMPUTE, update, -1, update, -1, start, now(), 0, samples, 0, mean, weight=stated)
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
