"""The recipes of pipelines, whose workers hold stages of the model: one row per published schedule."""

from __future__ import annotations

from typing import Any

from paceline.core.schedules import Schedule
from paceline.core.schedules.gpipe import Gpipe
from paceline.core.schedules.interleaved import Interleaved
from paceline.core.schedules.layers import Layers
from paceline.core.schedules.one_f_one_b import OneFOneB
from paceline.core.schedules.pipedream import Pipedream
from paceline.core.schedules.spectrain import Spectrain
from paceline.core.schedules.zero_bubble import ZeroBubble
from paceline.errors import PlanError
from paceline.recipe import TEAM, Kind, Recipe

PIPELINE = {
    **TEAM,
    "micro_batches": Kind(4),
    "cuts": Kind(""),
    "balance": Kind("time", words=("time", "memory")),
    "recompute": Kind("none"),
}


def _pipeline(schedule: Schedule, micro_batches: int, cuts: str, balance: str, recompute: str) -> dict[str, Any]:
    return {"schedule": schedule, "chunks": micro_batches, "cuts": cuts, "balance": balance, "recompute": recompute}


def _pipedream(workers: int, mode: str, micro_batches: int) -> Pipedream:
    if mode == "two_buffers" and micro_batches < workers:
        raise PlanError(
            f"plan 'pipedream': mode=two_buffers makes an update of at least as many micro-batches as there are "
            f"workers; give micro_batches={workers} or more"
        )
    return Pipedream(mode == "two_buffers")


def _layers(workers: int, micro_batches: int, on: str, cuts: str, balance: str, recompute: str) -> dict[str, Any]:
    words = on.split("+") if on else [str(worker) for worker in range(workers)]
    if set(words) != {str(worker) for worker in range(workers)}:
        raise PlanError(f"plan 'layers': on={on!r} must name each of the workers 0 to {workers - 1}, as in on=0+1+0+1")
    return _pipeline(Layers(tuple(map(int, words)) if on else ()), micro_batches, cuts, balance, recompute)


PIPELINES: dict[str, Recipe] = {
    "layers": Recipe(
        "the model cut by depth, one micro-batch after the other",
        _layers,
        {**PIPELINE, "micro_batches": Kind(1), "on": Kind("")},
    ),
    "gpipe": Recipe(
        "a pipeline: all forwards, all backwards, then the update",
        lambda micro_batches, cuts, balance, recompute: _pipeline(Gpipe(), micro_batches, cuts, balance, recompute),
        PIPELINE,
    ),
    "one_f_one_b": Recipe(
        "a pipeline: a forward and a backward in turn, then the update",
        lambda micro_batches, cuts, balance, recompute: _pipeline(OneFOneB(), micro_batches, cuts, balance, recompute),
        PIPELINE,
    ),
    "zero_bubble": Recipe(
        "a pipeline: backward in two halves, of which the second fills gaps",
        lambda micro_batches, cuts, balance, recompute: _pipeline(
            ZeroBubble(), micro_batches, cuts, balance, recompute
        ),
        PIPELINE,
    ),
    "interleaved": Recipe(
        "a pipeline: 1F1B with several stages at every worker",
        lambda micro_batches, each, cuts, balance, recompute: _pipeline(
            Interleaved(each), micro_batches, cuts, balance, recompute
        ),
        {**PIPELINE, "each": Kind(2)},
    ),
    "pipedream": Recipe(
        "an asynchronous pipeline: never flushed, with stashed weights",
        lambda workers, mode, micro_batches, cuts, balance, recompute: _pipeline(
            _pipedream(workers, mode, micro_batches), micro_batches, cuts, balance, recompute
        ),
        {**PIPELINE, "micro_batches": Kind(1), "mode": Kind("stash", words=("stash", "two_buffers"))},
    ),
    "spectrain": Recipe(
        "an asynchronous pipeline: never flushed, with predicted weights",
        lambda cuts, balance: _pipeline(Spectrain(), 1, cuts, balance, "none"),
        {**TEAM, "cuts": PIPELINE["cuts"], "balance": PIPELINE["balance"]},
    ),
}
