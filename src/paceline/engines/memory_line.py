"""The sentence about a pipeline's memory that `paceline draw --job` prints."""

from __future__ import annotations

from paceline.engines.memory_check import in_mib, peaks_of
from paceline.engines.setup import Setup


def memory_line(setup: Setup) -> str:
    """Say how much memory the workers of a pipeline take for this job."""
    assert setup.blueprint is not None
    chunks = setup.agenda.filled(0)
    chunk = max(chunks, key=lambda chunk: chunk.samples)
    assert setup.pipeline is not None
    table = setup.table((len(chunks),) * (setup.pipeline.schedule.span or setup.plan.workers))
    peaks = peaks_of(setup.job, setup.module, setup.source, setup.blueprint, chunk, table)
    return f"For {setup.job.name}, workers take at most {in_mib(peaks)} MiB for their tensors."
