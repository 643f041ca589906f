"""The memory of workers with parts of layers: bytes of tensors, counted while all of them compute an update together.

A worker's own memory is what it stores of the model, gradients, the optimizer's state, and what a chunk needs: values
between forward and backward, what movements bring, what is gathered of parameters. The vectors through which workers
exchange numbers are shared, and not counted.
"""

from __future__ import annotations

from torch import nn

from paceline.training.gradients.payload import GradientSum
from paceline.training.jobs.job import Job
from paceline.training.splits.gradients import SplitBlueprint, SplitReplica
from paceline.training.splits.planning import run_together
from paceline.training.splits.slicing import sliced
from paceline.training.stages.memory_estimate import BESIDES, OPERATION, Live, step_bytes
from paceline.training.stages.rehearsal import Example, fresh


def peaks_of_parts(
    job: Job, module: nn.Module, blueprint: SplitBlueprint, example: Example, chunks: int = 1
) -> list[int]:
    """Return the most bytes that each worker of a group will take, if an update has so many chunks like this one."""
    workers = range(blueprint.program.workers)
    parts = [SplitReplica(job, sliced(module, blueprint.stored, place), blueprint, place) for place in workers]
    lives = [Live() for _ in workers]
    draws = any(model.traced.draws for model in parts[0].models.values())
    for _ in range(min(2, chunks)):  # the second finds gradients to add to
        walks = []
        for part, live in zip(parts, lives, strict=True):
            with live:
                walks.append(part.walk(*fresh(example), 1.0))
        run_together(walks, draws, lives)
    sums = [GradientSum([], [b.clone() for b in p.replica.moving], 0.0, 1.0, 0) for p in parts]
    run_together([part.finish(each) for part, each in zip(parts, sums, strict=True)], False, lives)
    return [_peak(job, part, live) for part, live in zip(parts, lives, strict=True)]


def _peak(job: Job, part: SplitReplica, live: Live) -> int:
    """Return the peak of one worker: in a chunk, or in the optimizer's step."""
    replica = part.replica
    resident = sum(p.nbytes for p in replica.module.parameters()) + sum(b.nbytes for b in replica.module.buffers())
    gradients = sum(p.grad.nbytes for p in replica.parameters if p.grad is not None)
    chunk, graph = live.most, OPERATION * live.operations
    replica.take()
    state, moment = step_bytes(live, job.make_optimizer(replica.module, replica.parameters), replica.parameters)
    return BESIDES + resident + state + max(chunk + graph, gradients + moment)
