"""The sentence about the memory of workers with a part of the model that `paceline draw --job` prints."""

from __future__ import annotations

from paceline.runtime.engines.memory_check import chunks_each, in_mib, peaks_of
from paceline.runtime.engines.setup import Setup
from paceline.training.splits.planning import peaks_of_parts
from paceline.training.stages.rehearsal import examples_of


def memory_line(setup: Setup) -> str:
    """Say how much memory the workers of a pipeline, or of split layers, take for this job."""
    return f"For {setup.job.name}, workers take at most {in_mib(_peaks(setup))} MiB for their tensors."


def _peaks(setup: Setup) -> list[int]:
    if setup.split is not None:
        example = examples_of(setup.job, setup.source, setup.agenda)[0]
        return peaks_of_parts(setup.job, setup.module, setup.split, example, chunks_each(setup.plan, setup.agenda))
    assert setup.blueprint is not None
    assert setup.pipeline is not None
    chunks = setup.agenda.filled(0)
    chunk = max(chunks, key=lambda chunk: chunk.samples)
    table = setup.table((len(chunks),) * (setup.pipeline.schedule.span or setup.plan.workers))
    return peaks_of(setup.job, setup.module, setup.source, setup.blueprint, chunk, table)
