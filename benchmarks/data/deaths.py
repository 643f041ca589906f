"""Ends workers by SIGKILL while they train on shards; the trace then says how often each sample was applied.

A worker dies in the middle of an update, with the parameters half changed: a different one of its first 150 each time.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paceline.testing.killing import DiesInMidUpdate
from torch import nn

import paceline
from paceline.errors import WorkerDied
from paceline.plans.plan import Plan
from paceline.runtime.runs.trace import Kind
from paceline.training.data.shards import Shards
from paceline.training.data.source import Order
from paceline.training.preparation.prepare import prepare
from paceline.training.preparation.recipe import Recipe
from paceline.training.preparation.sources import Csv

PLANS, ROUNDS, EPOCHS, ROWS, BATCH = ("ring", "backup", "downpour"), 6, 2, 20_000, 64


def measure(folder: Path) -> dict[str, Any]:
    """Return for each plan what became of the samples of all its runs."""
    (folder / "rows.csv").write_text("id,v\n" + "".join(f"{n},{n / 7:.3f}\n" for n in range(ROWS)))
    recipe = Recipe(Csv(folder / "rows.csv", {"id": "int", "v": "float"}), {"id": "id", "x": ["v / 3000"]})
    prepare(recipe, folder / "shards")
    shards = Shards(folder / "shards")
    found = {}
    for plan in PLANS:
        told = Counter[str]()
        for number in range(ROUNDS):
            told.update(one(folder, shards, plan, number))
            print(json.dumps({plan: told}), flush=True)
        found[plan] = dict(told)
    return {"samples": ROWS, "epochs": EPOCHS, "plans": found}


def one(folder: Path, shards: Shards, plan: str, number: int) -> dict[str, int]:
    """Train once, and return what became of its samples."""
    chance, when = random.Random(number), folder / f"die-{plan}-{number}"
    when.touch()
    optimizer = partial(DiesInMidUpdate, lr=0.01, when=str(when), spared=chance.randrange(1, 150))
    job = paceline.Job(
        model=partial(nn.Linear, 1, 1), data=shards, step=step, optimizer=optimizer, batch_size=BATCH, epochs=EPOCHS
    )
    runs = folder / f"runs-{plan}-{number}"
    try:
        run = paceline.train(job, plan, workers=3, folder=runs, checkpoint_every=50)
    except WorkerDied:  # under ring, whose others cannot go on: the run goes on from its checkpoint
        (ended,) = runs.iterdir()
        run = paceline.train(job, plan, workers=3, folder=runs, resume=ended)
    deaths = run.summary()["deaths"]
    applied = times_applied(run, job, shards)
    assert run.path is not None
    return {
        "runs": 1,
        "workers killed": int(not when.exists()),
        "runs that went on from a checkpoint": int(not deaths),
        "samples applied once": int((applied == 1).sum()),
        "samples applied never or twice": int((applied != 1).sum()),
        "replays with the same bits": int(paceline.replay(run.path).matches),
    }


def step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    ids, x = batch
    return (model(x) - ids[:, None] / ROWS).square().mean()


def times_applied(run: Any, job: Any, shards: Shards) -> np.ndarray[Any, Any]:
    """Return how often each row of the folder was applied in each epoch, as the trace says.

    Under ring every worker applies every update to its own parameters: those of the first one count. Of two rows about
    one version the later one is valid: a worker was killed between the row and the version, or a run was resumed.
    """
    plan, rows = Plan.parse(run.summary()["plan"]), run.trace.of_kind(Kind.APPLY)
    rows = rows[rows["worker"] == 0] if plan.method.server is None else rows[rows["shard"] == 0]
    key = "update" if plan.traits.gathers else "version"
    leases = Counter({int(row[key]): int(row["update"]) for row in rows}.values())
    agenda = plan.agenda(ROWS, BATCH, EPOCHS, 1, limit=None)
    orders = [Order(ROWS, job.seed, job.shuffle).span(epoch, 0, ROWS) for epoch in range(EPOCHS)]
    ids = [shards.batch(order, epoch)[0].numpy() for epoch, order in enumerate(orders)]
    times = np.zeros((EPOCHS, ROWS), np.int64)
    for lease, count in leases.items():
        for chunk in agenda.task(lease):
            times[chunk.epoch, ids[chunk.epoch][chunk.start : chunk.stop]] += count
    return times
