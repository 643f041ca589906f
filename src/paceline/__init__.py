"""Paceline trains PyTorch models in parallel on Linux machines, and measures which method is fastest on your model.

Importing paceline does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from paceline.version import __version__ as __version__

if TYPE_CHECKING:
    from paceline.api.comparing.compare import compare as compare
    from paceline.api.compress import compress as compress
    from paceline.api.loading import load_run as load_run
    from paceline.api.parallel import parallel as parallel
    from paceline.api.planning.calibrate import calibrate as calibrate
    from paceline.api.planning.choose import choose as choose
    from paceline.api.planning.validate import validate as validate
    from paceline.api.simulate import simulate as simulate
    from paceline.api.train import train as train
    from paceline.api.tuning.tune import tune as tune
    from paceline.callbacks import Callback as Callback
    from paceline.callbacks.best_checkpoint import BestCheckpoint as BestCheckpoint
    from paceline.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from paceline.callbacks.progress_bar import ProgressBar as ProgressBar
    from paceline.data.mix import Mix as Mix
    from paceline.data.shard_stream import Stream as Stream
    from paceline.data.shards import Shards as Shards
    from paceline.engines.replay.replay import replay as replay
    from paceline.engines.virtual import World as World
    from paceline.errors import PacelineError as PacelineError
    from paceline.errors import ReplayDiverged as ReplayDiverged
    from paceline.errors import RunFailed as RunFailed
    from paceline.errors import RunStopped as RunStopped
    from paceline.errors import UsageError as UsageError
    from paceline.jobs.job import Job as Job
    from paceline.plans.named import *  # noqa: F403
    from paceline.plans.plan import Plan as Plan
    from paceline.preparation.ingest import ingest as ingest
    from paceline.preparation.prepare import prepare as prepare
    from paceline.preparation.recipe import Recipe as Recipe
    from paceline.preparation.recipe import Words as Words
    from paceline.preparation.sources import Arrow as Arrow
    from paceline.preparation.sources import Csv as Csv
    from paceline.preparation.sources import Idx as Idx
    from paceline.preparation.sources import Images as Images
    from paceline.preparation.sources import JsonLines as JsonLines
    from paceline.preparation.sources import Lines as Lines
    from paceline.preparation.sources import Parquet as Parquet
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
    "PacelineError": "paceline.errors",
    "Progress": "paceline.runs.progress",
    "ReplayDiverged": "paceline.errors",
    "Run": "paceline.runs.run",
    "RunFailed": "paceline.errors",
    "RunStopped": "paceline.errors",
    "UsageError": "paceline.errors",
    "train": "paceline.api.train",
    "compare": "paceline.api.comparing.compare",
    "compress": "paceline.api.compress",
    "load_run": "paceline.api.loading",
    "calibrate": "paceline.api.planning.calibrate",
    "choose": "paceline.api.planning.choose",
    "simulate": "paceline.api.simulate",
    "validate": "paceline.api.planning.validate",
    "Callback": "paceline.callbacks",
    "EarlyStopping": "paceline.callbacks.early_stopping",
    "BestCheckpoint": "paceline.callbacks.best_checkpoint",
    "ProgressBar": "paceline.callbacks.progress_bar",
    "replay": "paceline.engines.replay.replay",
    "parallel": "paceline.api.parallel",
    "World": "paceline.engines.virtual",
    "ThroughTime": "paceline.stages.through_time",
    "tune": "paceline.api.tuning.tune",
    "Space": "paceline.tuner.space",
    "Float": "paceline.tuner.space",
    "Int": "paceline.tuner.space",
    "Choice": "paceline.tuner.space",
    "Trial": "paceline.tuner.trial",
    "Shards": "paceline.data.shards",
    "Mix": "paceline.data.mix",
    "Stream": "paceline.data.shard_stream",
    "ingest": "paceline.preparation.ingest",
    "prepare": "paceline.preparation.prepare",
    "Recipe": "paceline.preparation.recipe",
    "Words": "paceline.preparation.recipe",
    "Csv": "paceline.preparation.sources",
    "JsonLines": "paceline.preparation.sources",
    "Lines": "paceline.preparation.sources",
    "Parquet": "paceline.preparation.sources",
    "Arrow": "paceline.preparation.sources",
    "Images": "paceline.preparation.sources",
    "Idx": "paceline.preparation.sources",
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
