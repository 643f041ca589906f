"""Which engine a launcher's processes use when the user names none, and which of them this one is."""

from __future__ import annotations

from paceline.runtime.engines import cluster, mpi
from paceline.training.jobs.job import Job


def engine_of(job: Job | None) -> str:
    """Return the engine for this process: that of one machine, unless a launcher started several nodes."""
    if cluster.nodes() < 2:
        return "local"
    by_mpi = mpi.ranks() > 1 and job is not None and job.compute == "fused"
    return "mpi" if by_mpi else "cluster"


def rank_of(engine: str) -> int:
    """Return this process's rank under an engine; only rank 0 reports."""
    if engine == "mpi":
        return mpi.rank()
    return cluster.roster().rank if engine == "cluster" else 0
