"""The plan that `train(plan="auto")` follows: one process where it takes seconds, else what `choose` chooses.

A search measures many plans, which takes longer than the training of a small job. What was chosen is remembered by the
job's kind, its length and the machine: the same command trains in the same way from then on, and at once. How gradients
are computed is not decided here, but where it is for every other plan, in `training.gradients.choice`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paceline import user_cache
from paceline.errors import PacelineError
from paceline.interfaces.api.lines import silent
from paceline.interfaces.api.planning.choose import choose
from paceline.interfaces.api.planning.measuring import measure
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.setup import set_up
from paceline.training.gradients.choice import choices, kind_of
from paceline.training.jobs.job import Job, checked

# --- The plans that were chosen on this machine, by what was to be trained --------------------------------------------


class Followed(NamedTuple):
    """A plan with how it computes gradients, and why."""

    plan: str
    compute: str
    why: str


def recall(key: str) -> Followed | None:
    """Return what was chosen before; None if nothing was."""
    with suppress(OSError, ValueError, TypeError):
        return Followed(**json.loads(user_cache.read(_file(key))))
    return None


def remember(key: str, followed: Followed) -> None:
    """Keep a choice for later processes."""
    with suppress(OSError):  # it will be made again
        user_cache.write(_file(key), json.dumps(followed._asdict()).encode())


def _file(key: str) -> Path:
    return choices() / f"plan-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


UPDATES = 16  # by which a plan is timed
SEARCH = 30.0  # seconds that a training has to take by one process, from which on a search of about half of that pays
SECOND = 1.0  # from which on a second thread is timed, and an asynchronous plan
PAYS = 1.3  # times as fast as one thread, from which on two are chosen: both are timed only briefly
ONE, TWO = make("sequential"), make("sequential", threads=2)
ASYNCHRONOUS = make("downpour", workers=2)


def follow(job: Job, workers: int | None = None, limit: int | None = None) -> Followed:
    """Return the plan that was chosen for such a job before, or choose one; `limit` is the most updates."""
    job = checked(job)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training says it
        setup = set_up(job.untested().with_(compute="autograd"), ONE, "virtual", limit, bounded=True)
    updates = setup.agenda.updates
    key = repr((kind_of(job, setup.module), job.compute, updates, workers, len(os.sched_getaffinity(0))))
    if (followed := recall(key)) is None:
        followed = _choose(job, updates, workers, limit)
        remember(key, followed)
    return followed


def _choose(job: Job, updates: int, workers: int | None, limit: int | None) -> Followed:
    alone, seconds = _timed(job, ONE, updates, limit)
    if seconds < SEARCH:
        return _without_a_search(job, alone, updates, seconds, limit)
    choice = choose(job, workers=workers, say=silent)
    return Followed(str(choice.best.plan), choice.compute, choice.sentences[0])


def _timed(job: Job, plan: Plan, updates: int, limit: int | None) -> tuple[Job, float]:
    """Return the job with the way of computing that one process takes for it, and the seconds of all its updates."""
    if job.compute == "auto":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            choice = set_up(job.untested(), plan, "local", limit, bounded=True).choice
        assert choice is not None
        job = job.with_(compute=choice.compute)
        if choice.seconds is not None:
            return job, choice.seconds
    return job, updates * measure(job, plan, UPDATES).seconds


def _without_a_search(job: Job, alone: Job, updates: int, seconds: float, limit: int | None) -> Followed:
    """Return one process with one thread or two; `seconds` are those of one. The same numbers, so nothing is risked."""
    short = f"one process trains in about {seconds:.1f} s"
    if seconds < SECOND or len(os.sched_getaffinity(0)) < 2:
        return Followed(str(ONE), job.compute, f"{short}, and a search for another plan takes as long")
    _, together = _timed(job, TWO, updates, limit)
    if together * PAYS > seconds:
        plan = ONE
        why = f"{short}, and with two threads in about {together:.1f} s"
    else:
        plan = TWO
        why = f"two threads train in about {together:.1f} s, and one in {seconds:.1f} s"
    return Followed(str(plan), job.compute, why + _faster_otherwise(alone, plan))


def _faster_otherwise(job: Job, plan: Plan) -> str:
    """Say where a plan whose numbers are others in each run is faster; empty where none is."""
    try:
        ratio = measure(job, plan, UPDATES).seconds / measure(job, ASYNCHRONOUS, UPDATES).seconds
    except PacelineError:
        return ""  # it cannot train this job
    if ratio < PAYS:
        return ""
    name = ASYNCHRONOUS.name
    return f"; {name} would be about {ratio:.1f} times as fast, with stale gradients and other numbers in each run"
