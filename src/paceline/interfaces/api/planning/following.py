"""The plan that `train(plan="auto")` follows: the fastest of a few where it takes seconds, else what `choose` chooses.

A search measures many plans, which takes longer than the training of a small job. There one process is compared with
two threads and with two workers that share each batch: all compute the same gradients, but for rounding. What was
chosen is remembered by the job's kind, its length and the machine: the same command trains in the same way from then
on, and at once. How gradients are computed is not decided here, but where it is for every other plan, in
`training.gradients.choice`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from paceline import user_cache
from paceline.errors import PacelineError
from paceline.interfaces.api.lines import silent
from paceline.interfaces.api.planning.choose import choose
from paceline.interfaces.api.planning.measuring import measure
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.setup import set_up
from paceline.training.gradients.choice import choices, kind_of, update_seconds
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


UPDATES = 16  # by which one process is timed on a GPU
TIMED = 0.1  # seconds for which each of some plans is timed
LEAST, MOST = 5, 5000  # updates of each worker in that time
HOPELESS = 0.5  # times as fast as one process in the least updates, with less of which a plan is not timed for longer
MANY = 300  # updates, with fewer of which those by which plans are timed are too many: two threads alone are
SEARCH = 30.0  # seconds that a training has to take by one process, from which on a search of about half of that pays
SECOND = 1.0  # from which on plans that use a second core are timed
PAYS = 1.15  # times as fast as one thread, from which on a second core is taken: both are timed only briefly
NAMED = 1.3  # times as fast as the plan that is followed, from which on an asynchronous one is named
ONE, TWO, RING = make("sequential"), make("sequential", threads=2), make("ring", workers=2)
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
        # Each worker would norm by the statistics of its own part of a batch.
        divides = workers != 1 and not setup.probe.moving
        followed = _choose(job, updates, workers, limit, divides)
        remember(key, followed)
    return followed


def _choose(job: Job, updates: int, workers: int | None, limit: int | None, divides: bool) -> Followed:
    """Choose a plan for so many updates; `divides`: workers may each compute a part of a batch."""
    alone, seconds = _alone(job, updates, limit)
    if seconds >= SEARCH:
        choice = choose(job, workers=workers, say=silent)
        return Followed(str(choice.best.plan), choice.compute, choice.sentences[0])
    short = f"one process trains in about {seconds:.1f} s"
    if seconds < SECOND or len(os.sched_getaffinity(0)) < 2:
        return Followed(str(ONE), job.compute, f"{short}, and a search for another plan takes as long")
    plans = [TWO, *([RING] if divides else []), ASYNCHRONOUS] if updates >= MANY else [TWO]
    ratios = _ratios(alone, seconds / updates, plans)
    asynchronous = ratios.pop(str(ASYNCHRONOUS), 0.0)
    pays = {name: each for name, each in ratios.items() if each >= PAYS}
    plan, ratio = max(pays.items(), key=itemgetter(1), default=(str(ONE), 1.0))
    # Generated code that pays for one thread is what two have been timed with.
    compute = alone.compute if plan == str(TWO) else job.compute
    texts = [short, *(f"{name} in {seconds / each:.1f} s" for name, each in ratios.items())]
    return Followed(plan, compute, ", ".join(texts) + _named(asynchronous / ratio))


def _alone(job: Job, updates: int, limit: int | None) -> tuple[Job, float]:
    """Return the job with the way of computing that one process takes for it, and the seconds of all its updates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup = set_up(job.untested(), ONE, "local", limit, bounded=True)
    job = job.with_(compute=setup.job.compute)
    if setup.choice is not None and setup.choice.seconds is not None:
        return job, setup.choice.seconds
    if setup.placement.devices[0].type != "cpu":
        return job, updates * measure(job, ONE, UPDATES).seconds
    return job, updates * update_seconds(setup.job, setup.module, setup.source)


def _ratios(job: Job, seconds: float, plans: Iterable[Plan]) -> dict[str, float]:
    """How many times as fast as one process, whose updates take so many seconds, plans are that can train the job."""
    count = max(LEAST, min(MOST, round(TIMED / seconds)))
    one, ratios = measure(job, ONE, count).seconds, dict[str, float]()
    for plan in plans:
        with suppress(PacelineError):
            for updates in (LEAST, count):  # where cores are busy, two threads may be a hundred times as slow as one
                ratios[str(plan)] = one / measure(job, plan, updates * plan.workers).seconds
                if ratios[str(plan)] < HOPELESS or count == LEAST:
                    break
    return ratios


def _named(ratio: float) -> str:
    """Name a plan whose numbers are others in each run where it is so many times as fast; empty where it is not."""
    if ratio < NAMED:
        return ""
    name = ASYNCHRONOUS.name
    return f"; {name} would be about {ratio:.1f} times as fast, with stale gradients and other numbers in each run"
