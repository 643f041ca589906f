"""Paceline trains PyTorch models in parallel on Linux machines, and measures which method is fastest on your model.

Importing paceline does not import torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from paceline.instruction_sets import VARIABLE, limit
from paceline.moved import forward
from paceline.version import __version__ as __version__

if TYPE_CHECKING:
    from paceline.errors import PacelineError as PacelineError
    from paceline.errors import ReplayDiverged as ReplayDiverged
    from paceline.errors import RunFailed as RunFailed
    from paceline.errors import RunStopped as RunStopped
    from paceline.errors import UsageError as UsageError
    from paceline.interfaces.api.comparing.compare import compare as compare
    from paceline.interfaces.api.compress import compress as compress
    from paceline.interfaces.api.loading import load_run as load_run
    from paceline.interfaces.api.parallel import parallel as parallel
    from paceline.interfaces.api.planning.calibrate import calibrate as calibrate
    from paceline.interfaces.api.planning.choose import choose as choose
    from paceline.interfaces.api.planning.validate import validate as validate
    from paceline.interfaces.api.simulate import simulate as simulate
    from paceline.interfaces.api.train import train as train
    from paceline.interfaces.api.tuning.tune import tune as tune
    from paceline.interfaces.callbacks import Callback as Callback
    from paceline.interfaces.callbacks.progress_bar import ProgressBar as ProgressBar
    from paceline.interfaces.callbacks.watching import BestCheckpoint as BestCheckpoint
    from paceline.interfaces.callbacks.watching import EarlyStopping as EarlyStopping
    from paceline.planning.tuner.space import Choice as Choice
    from paceline.planning.tuner.space import Float as Float
    from paceline.planning.tuner.space import Int as Int
    from paceline.planning.tuner.space import Space as Space
    from paceline.planning.tuner.trial import Trial as Trial
    from paceline.plans.named import *  # noqa: F403
    from paceline.plans.plan import Plan as Plan
    from paceline.runtime.engines.cluster import NodeOptions as NodeOptions
    from paceline.runtime.engines.replay.replay import replay as replay
    from paceline.runtime.engines.replay.verify import verify as verify
    from paceline.runtime.engines.virtual import World as World
    from paceline.runtime.runs.progress import Progress as Progress
    from paceline.runtime.runs.run import Run as Run
    from paceline.training.data.opening import Mix as Mix
    from paceline.training.data.shards import Shards as Shards
    from paceline.training.data.shards import Stream as Stream
    from paceline.training.jobs.job import Job as Job
    from paceline.training.preparation.ingest import ingest as ingest
    from paceline.training.preparation.prepare import prepare as prepare
    from paceline.training.preparation.recipe import Recipe as Recipe
    from paceline.training.preparation.recipe import Words as Words
    from paceline.training.preparation.sources import Arrow as Arrow
    from paceline.training.preparation.sources import Csv as Csv
    from paceline.training.preparation.sources import Idx as Idx
    from paceline.training.preparation.sources import Images as Images
    from paceline.training.preparation.sources import JsonLines as JsonLines
    from paceline.training.preparation.sources import Lines as Lines
    from paceline.training.preparation.sources import Parquet as Parquet
    from paceline.training.stages.through_time import ThroughTime as ThroughTime

forward()
if VARIABLE in os.environ:  # before PyTorch is imported, whose libraries read what this sets
    limit(os.environ[VARIABLE])

_FACE = {
    "Job": "paceline.training.jobs.job",
    "Plan": "paceline.plans.plan",
    "PacelineError": "paceline.errors",
    "Progress": "paceline.runtime.runs.progress",
    "ReplayDiverged": "paceline.errors",
    "Run": "paceline.runtime.runs.run",
    "RunFailed": "paceline.errors",
    "RunStopped": "paceline.errors",
    "UsageError": "paceline.errors",
    "train": "paceline.interfaces.api.train",
    "compare": "paceline.interfaces.api.comparing.compare",
    "compress": "paceline.interfaces.api.compress",
    "load_run": "paceline.interfaces.api.loading",
    "calibrate": "paceline.interfaces.api.planning.calibrate",
    "choose": "paceline.interfaces.api.planning.choose",
    "simulate": "paceline.interfaces.api.simulate",
    "validate": "paceline.interfaces.api.planning.validate",
    "Callback": "paceline.interfaces.callbacks",
    "EarlyStopping": "paceline.interfaces.callbacks.watching",
    "BestCheckpoint": "paceline.interfaces.callbacks.watching",
    "ProgressBar": "paceline.interfaces.callbacks.progress_bar",
    "replay": "paceline.runtime.engines.replay.replay",
    "verify": "paceline.runtime.engines.replay.verify",
    "parallel": "paceline.interfaces.api.parallel",
    "World": "paceline.runtime.engines.virtual",
    "NodeOptions": "paceline.runtime.engines.cluster",
    "ThroughTime": "paceline.training.stages.through_time",
    "tune": "paceline.interfaces.api.tuning.tune",
    "Space": "paceline.planning.tuner.space",
    "Float": "paceline.planning.tuner.space",
    "Int": "paceline.planning.tuner.space",
    "Choice": "paceline.planning.tuner.space",
    "Trial": "paceline.planning.tuner.trial",
    "Shards": "paceline.training.data.shards",
    "Mix": "paceline.training.data.opening",
    "Stream": "paceline.training.data.shards",
    "ingest": "paceline.training.preparation.ingest",
    "prepare": "paceline.training.preparation.prepare",
    "Recipe": "paceline.training.preparation.recipe",
    "Words": "paceline.training.preparation.recipe",
    "Csv": "paceline.training.preparation.sources",
    "JsonLines": "paceline.training.preparation.sources",
    "Lines": "paceline.training.preparation.sources",
    "Parquet": "paceline.training.preparation.sources",
    "Arrow": "paceline.training.preparation.sources",
    "Images": "paceline.training.preparation.sources",
    "Idx": "paceline.training.preparation.sources",
}


if not TYPE_CHECKING:  # type checkers know the names above, and refuse any other

    def __getattr__(name: str) -> Any:
        if name in _FACE:
            return getattr(importlib.import_module(_FACE[name]), name)
        if name[:1].isupper():
            from paceline.plans.named import constructor_of

            if (build := constructor_of(name)) is not None:
                return build
        raise AttributeError(f"module 'paceline' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    from paceline.plans.named import constructors

    return sorted([*_FACE, *constructors(), "__version__"])
