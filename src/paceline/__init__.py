"""Paceline trains PyTorch models in parallel on the machines you have, and tells you which way pays.

The house, in the order a training walks through it:

    job, jobs    what is trained, and the built-in jobs
    plan         how: a choice on each axis, with names for the well-known ones
    core         the algorithms, pure: tables, machines, rules
    compute      how a worker gets its gradient, and how parameters lie in memory
    data         which samples a batch holds
    engines      run a plan: virtual (a clock that jumps), local (processes), replay (a recorded run again)
    training     `train`: setup, engine, outcome
    own_loop     `parallel`: the same plans in a loop of the user's own
    trace, run   what happened, and the folder it is kept in
    tally, board what each worker's time went into, after and while it goes on
    report       the page, and files for other tools
    comparison   plans side by side on your own job
    cli          the command line; testing: the conformance suites

Importing paceline does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.version import __version__ as __version__

if TYPE_CHECKING:
    from paceline.api.compare import compare as compare
    from paceline.api.parallel import parallel as parallel
    from paceline.api.train import train as train
    from paceline.api.tune import tune as tune
    from paceline.callbacks import Callback as Callback
    from paceline.callbacks.best_checkpoint import BestCheckpoint as BestCheckpoint
    from paceline.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from paceline.engines.replay.replay import replay as replay
    from paceline.jobs.job import Job as Job
    from paceline.plans.plan import Plan as Plan
    from paceline.runs.progress import Progress as Progress
    from paceline.runs.run import Run as Run
    from paceline.stages.through_time import ThroughTime as ThroughTime
    from paceline.tuner.space import Choice as Choice
    from paceline.tuner.space import Float as Float
    from paceline.tuner.space import Int as Int
    from paceline.tuner.space import Space as Space
    from paceline.tuner.trial import Trial as Trial

_FACE = {
    "Job": "paceline.jobs.job",
    "Plan": "paceline.plans.plan",
    "Progress": "paceline.runs.progress",
    "Run": "paceline.runs.run",
    "train": "paceline.api.train",
    "compare": "paceline.api.compare",
    "Callback": "paceline.callbacks",
    "EarlyStopping": "paceline.callbacks.early_stopping",
    "BestCheckpoint": "paceline.callbacks.best_checkpoint",
    "replay": "paceline.engines.replay.replay",
    "parallel": "paceline.api.parallel",
    "World": "paceline.engines.virtual",
    "ThroughTime": "paceline.stages.through_time",
    "tune": "paceline.api.tune",
    "Space": "paceline.tuner.space",
    "Float": "paceline.tuner.space",
    "Int": "paceline.tuner.space",
    "Choice": "paceline.tuner.space",
    "Trial": "paceline.tuner.trial",
}


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(importlib.import_module(_FACE[name]), name)
    if name[:1].isupper():
        from paceline.plans.plan import plan_class

        if (build := plan_class(name)) is not None:
            return build
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_FACE, "__version__"])
