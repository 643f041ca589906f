"""`ampnet` against training in step, on a tree LSTM: seconds until the loss is as low as asked for, on processes."""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from harness import rows_of

import paceline
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from tree_lstm import job

PLANS = ("sequential", "ring:workers=2", "ampnet:workers=2,micro_batches=8,every=8,active=16")
ROUNDS, EPOCHS, TARGET, OVER = 3, 4, 0.5, 10  # the mean loss of so many batches


def seconds_to(run: Run) -> float:
    """Return when the mean loss over the last batches was first as low as the target; infinite if it never was."""
    rows = run.trace.of_kind(Kind.COMPUTE)
    order = np.argsort(rows["end"], kind="stable")
    ends, losses, samples = rows["end"][order], rows["value"][order], rows["samples"][order]
    batches = np.cumsum(samples) // 8
    for last in range(OVER, int(batches[-1]) + 1):
        here = (batches > last - OVER) & (batches <= last)
        if np.average(losses[here], weights=samples[here]) <= TARGET:
            return float(ends[here].max()) / 1e9
    return float("inf")


def trained(key: list[Any]) -> dict[str, Any]:
    made = job.with_(epochs=EPOCHS, test=None, metrics={}, evaluate=None)
    run = paceline.train(made, key[1], folder=Path(tempfile.gettempdir()) / "paceline-splits")
    last = float(np.mean(run.trace.loss_curve()[1][-25:]))
    print(key, seconds_to(run), run.summary()["seconds"], last, flush=True)
    return {"to the loss": seconds_to(run), "in all": run.summary()["seconds"], "last": last}


def measure_trees() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = rows_of("rows_trees.jsonl", [[turn, plan] for turn in range(ROUNDS) for plan in PLANS], trained)
    found: dict[str, dict[str, list[float]]] = {p: {"to the loss": [], "in all": [], "last": []} for p in PLANS}
    for row in rows:
        for name, values in found[row["key"][1]].items():
            values.append(row[name])
    for plan, mine in found.items():
        print(plan, {name: round(statistics.median(values), 3) for name, values in mine.items()}, flush=True)
    return {"target": TARGET, "rounds": ROUNDS, "seconds": found}
