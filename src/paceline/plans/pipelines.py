"""The recipes of pipelines, whose workers hold stages of the model: one row per published schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.schedules import Schedule
from paceline.core.schedules.gpipe import Gpipe
from paceline.core.schedules.interleaved import Interleaved
from paceline.core.schedules.layers import Layers
from paceline.core.schedules.one_f_one_b import OneFOneB
from paceline.core.schedules.own import Own
from paceline.core.schedules.pipedream import Pipedream
from paceline.core.schedules.spectrain import Spectrain
from paceline.core.schedules.zero_bubble import ZeroBubble
from paceline.errors import PlanError
from paceline.plans.recipe import TEAM, THREADS, Kind, Recipe

CUTTING = {
    "cuts": Kind(""),
    "balance": Kind("time", words=("time", "memory")),
    "recompute": Kind("none"),
    "memory": Kind(0, least=0),
}
PIPELINE = {**TEAM, "micro_batches": Kind(4), **CUTTING}


def _pipeline(schedule: Schedule, micro_batches: int = 1) -> dict[str, Any]:
    return {"schedule": schedule, "chunks": micro_batches}


def _layers(workers: int, micro_batches: int, on: str) -> dict[str, Any]:
    words = on.split("+") if on else [str(worker) for worker in range(workers)]
    if set(words) != {str(worker) for worker in range(workers)}:
        named = sorted({int(word) for word in words if word.isdigit()})
        more = f", or give workers={len(named)}" if named == list(range(len(named))) and len(named) > 1 else ""
        raise PlanError(
            f"plan 'layers': on={on!r} must name each of the workers 0 to {workers - 1}, as in on=0+1+0+1{more}"
        )
    return _pipeline(Layers(tuple(map(int, words)) if on else ()), micro_batches)


def _pipedream(workers: int, mode: str, micro_batches: int) -> dict[str, Any]:
    if mode == "two_buffers" and micro_batches < workers:
        raise PlanError(
            f"plan 'pipedream': mode=two_buffers makes an update of at least as many micro-batches as there are "
            f"workers; give micro_batches={workers} or more"
        )
    return _pipeline(Pipedream(mode == "two_buffers"), micro_batches)


def _own(file: str, kept: str) -> dict[str, Any]:
    schedule = Own(kept, file or Own.name) if kept else Own()
    if file and not kept:
        try:
            schedule = Own(Path(file).read_text(), file)
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"plan 'table': {file} cannot be read: {error}") from error
    return {**_pipeline(schedule, schedule.micro_batches), "workers": schedule.workers}


PIPELINES: dict[str, Recipe] = {
    "layers": Recipe(
        "the model cut by depth, one micro-batch after the other",
        _layers,
        {**PIPELINE, "micro_batches": Kind(1), "on": Kind("")},
    ),
    "gpipe": Recipe(
        "a pipeline: all forwards, all backwards, then the update",
        lambda micro_batches: _pipeline(Gpipe(), micro_batches),
        PIPELINE,
    ),
    "one_f_one_b": Recipe(
        "a pipeline: a forward and a backward in turn, then the update",
        lambda micro_batches: _pipeline(OneFOneB(), micro_batches),
        PIPELINE,
    ),
    "zero_bubble": Recipe(
        "a pipeline: backward in two halves, of which the second fills gaps",
        lambda micro_batches: _pipeline(ZeroBubble(), micro_batches),
        PIPELINE,
    ),
    "interleaved": Recipe(
        "a pipeline: 1F1B with several stages at every worker",
        lambda micro_batches, each: _pipeline(Interleaved(each), micro_batches),
        {**PIPELINE, "each": Kind(2)},
    ),
    "pipedream": Recipe(
        "an asynchronous pipeline: never flushed, with stashed weights",
        _pipedream,
        {**PIPELINE, "micro_batches": Kind(1), "mode": Kind("stash", words=("stash", "two_buffers"))},
    ),
    "spectrain": Recipe(
        "an asynchronous pipeline: never flushed, with predicted weights",
        lambda: _pipeline(Spectrain()),
        {**TEAM, **{key: kind for key, kind in CUTTING.items() if key != "recompute"}},
    ),
    "table": Recipe("a pipeline by a table of your own", _own, {"threads": THREADS, "file": Kind(""), **CUTTING}),
}
