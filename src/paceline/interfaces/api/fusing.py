"""Whether generated code can compute a job, and whether a training takes it."""

from __future__ import annotations

import warnings

from paceline.errors import PacelineError
from paceline.plans.plan import make
from paceline.runtime.engines.setup import set_up
from paceline.training.jobs.job import Job


def can_fuse(job: Job) -> bool:
    """Whether the job can be computed by generated code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            set_up(job.untested().with_(compute="fused"), make("sequential"), "local", 1)
    except (PacelineError, Warning):
        return False
    return True


def settled(job: Job, limit: int | None = None) -> Job:
    """Return the job with the way of computing that one process takes for all of it, in place of "auto".

    `limit` is the most updates.
    """
    if job.compute != "auto":
        return job
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training says it
        return job.with_(compute=set_up(job.untested(), make("sequential"), "local", limit, bounded=True).job.compute)
