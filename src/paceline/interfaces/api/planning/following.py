"""The plan that `train(plan="auto")` follows: the fastest of a few where it takes seconds, else what `choose` chooses.

A search measures many plans, which takes longer than the training of a small job. There one process is compared with
two threads and with two workers that share each batch: all compute the same gradients, but for rounding. They are timed
only where that takes less than they can save, which is half of the training. What was chosen is remembered by the job's
kind, its length and the machine: the same command trains in the same way from then on, and at once. How gradients are
computed is not decided here, but where it is for every other plan, in `training.gradients.choice`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
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
START = 0.2  # seconds that such a short training takes beside, about
LEAST, MOST = 5, 5000  # updates of each worker in that time
SAVED = 0.5  # of a training, the most that a second core saves
SLOW = 3.0  # times as long as one process, from which on a plan is timed no longer: cores may be busy
SEARCH = 30.0  # seconds that a training has to take by one process, from which on a search of about half of that pays
PAYS = 1.15  # times as fast as one thread, from which on a second core is taken: both are timed only briefly
NAMED = 1.3  # times as fast as the plan that is followed, from which on an asynchronous one is named
LITTLE = 0.03  # of a training: so long may timing take that changes nothing of it
ONE, TWO, RING = make("sequential"), make("sequential", threads=2), make("ring", workers=2)
ASYNCHRONOUS = make("downpour", workers=2)


class Training(NamedTuple):
    """A training by one process."""

    updates: int
    #: Seconds of an update.
    each: float

    @property
    def seconds(self) -> float:
        """Seconds of all updates."""
        return self.updates * self.each

    @property
    def timed_updates(self) -> int:
        """The updates of each worker by which a plan is timed."""
        return max(LEAST, min(MOST, round(TIMED / self.each)))

    @property
    def cost(self) -> float:
        """Seconds that timing one plan takes, about."""
        return START + max(TIMED, LEAST * self.each)

    def worth_timing(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """Return the first of the plans, as many as are timed, beside one process, in less time than they can save."""
        return plans[: max(0, int(SAVED * self.seconds / self.cost) - 1)]


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
    alone, expected = _alone(job, updates, limit)
    if expected.seconds >= SEARCH:
        choice = choose(job, workers=workers, say=silent)
        return Followed(str(choice.best.plan), choice.compute, choice.sentences[0])
    plans = expected.worth_timing([TWO, *([RING] if divides else [])] if len(os.sched_getaffinity(0)) > 1 else [])
    if plans:  # generated code makes many updates in one call, which takes less time than was expected
        expected = Training(updates, measure(alone, ONE, expected.timed_updates).seconds)
        plans = expected.worth_timing(plans)
    short = f"one process trains in about {max(0.1, expected.seconds):.1f} s"
    if not plans:
        return Followed(str(ONE), job.compute, f"{short}, and a search for another plan takes as long")
    timed = [(each, _ratio(alone, each, expected)) for each in plans]
    plan, ratio = max(timed, key=itemgetter(1))
    if ratio < PAYS:
        plan, ratio = ONE, 1.0
    # Generated code that pays for one thread is what two have been timed with.
    compute = alone.compute if plan == TWO else job.compute
    texts = [short, *(f"{each} in {expected.seconds / times:.1f} s" for each, times in timed if times)]
    advises = workers != 1 and expected.cost <= LITTLE * expected.seconds / ratio
    advice = _named(_ratio(alone, ASYNCHRONOUS, expected) / ratio) if advises else ""
    return Followed(str(plan), compute, ", ".join(texts) + advice)


def _alone(job: Job, updates: int, limit: int | None) -> tuple[Job, Training]:
    """Return the job with the way of computing that one process takes for it, and the training that is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup = set_up(job.untested(), ONE, "local", limit, bounded=True)
    job = job.with_(compute=setup.job.compute)
    if setup.choice is not None and setup.choice.seconds is not None:
        return job, Training(updates, setup.choice.seconds / updates)
    if setup.placement.devices[0].type != "cpu":
        return job, Training(updates, measure(job, ONE, UPDATES).seconds)
    return job, Training(updates, update_seconds(setup.job, setup.module, setup.source))


def _ratio(job: Job, plan: Plan, alone: Training) -> float:
    """How many times as fast as one process a plan is; 0 where it cannot train the job, or is much slower."""
    updates = alone.timed_updates * (1 if plan.traits.synchronous else plan.workers)
    with suppress(PacelineError):
        most = SLOW * max(TIMED, alone.timed_updates * alone.each)
        return alone.each / measure(job, plan, updates, most).seconds
    return 0.0


def _named(ratio: float) -> str:
    """Name a plan whose numbers are others in each run where it is so many times as fast; empty where it is not."""
    if ratio < NAMED:
        return ""
    name = ASYNCHRONOUS.name
    return f"; {name} would be about {ratio:.1f} times as fast, with stale gradients and other numbers in each run"
