"""SIGKILL at random moments: Downpour finishes every sample, ring ends in seconds and names the dead, nothing is left.

A quarter of the deaths happen inside an update, with the shard's lock held and half of the parameters overwritten. With
`--compute fused` workers are in generated code, and all deaths are at random moments.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from paceline.testing.conformance import no_update_lost, replays, staleness_identity
from paceline.testing.killing import DiesInMidUpdate, kill_later, kill_one
from paceline.testing.leaks import nothing_left_behind
from torch import nn

import paceline as pl
from paceline.errors import RunFailed, WorkerDied
from paceline.runtime.runs.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(4000, 30, generator=G), torch.randint(5, (4000,), generator=G)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 200), nn.Tanh(), nn.Dropout(0.1), nn.Linear(200, 5))


def job(**changes: Any) -> pl.Job:
    given = {"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9), "batch_size": 10, "epochs": 4, **changes}
    return pl.Job(model=model, data=(X, Y), loss=nn.CrossEntropyLoss(), **given)


def downpour(chance: random.Random, inside: bool, scratch: Path, compute: str) -> bool:
    """One run with one death somewhere; whether the death came in time to matter."""
    # Generated code makes an update in a tenth of the time.
    shards, made = chance.choice((1, 2, 4)), job(epochs=60 if compute == "fused" else 3, compute=compute)
    progress: Any = None
    if inside:
        when = scratch / "die"
        made = job(optimizer=partial(DiesInMidUpdate, lr=0.05, momentum=0.9, when=str(when)))
        at = chance.randrange(20, 800)

        def progress(state: Progress, armed: list[int] = []) -> None:  # noqa: B006
            if state.updates >= at and not armed:
                armed.append(1)
                when.touch()

    else:
        victim = chance.randrange(3)
        progress = kill_one(chance.random() * 0.4, lambda n: victim % n)
    run = pl.train(made, f"downpour:workers=3,shards={shards}", folder=None, progress=progress)
    (scratch / "die").unlink(missing_ok=True)
    no_update_lost(run)
    staleness_identity(run)
    assert all(float(p.detach().abs().max()) < 1e3 for p in run.model.parameters()), "torn"
    replays(run)
    return bool(run.summary()["deaths"])


def ring(chance: random.Random, compute: str) -> tuple[bool, float]:
    """One run with one death; whether it struck, and the seconds from the kill to the end."""
    killed: list[float] = []

    def choose(count: int) -> int:
        killed.append(time.monotonic())
        return chance.randrange(count)

    beside = threading.Thread(target=kill_later, args=(0.2 + chance.random() * 1.0, choose))
    beside.start()
    try:
        pl.train(job(epochs=100_000, compute=compute), "ring:workers=3", folder=None)
    except WorkerDied as error:
        return "SIGKILL" in error.failure.what, time.monotonic() - killed[0]
    finally:
        beside.join()
    return False, 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute", choices=["autograd", "fused"], default="autograd")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    struck = {"downpour, anywhere": 0, "downpour, in mid-update": 0, "ring": 0}
    early, slowest = 0, 0.0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.deaths):
            kind = number % 4  # half of the deaths are Downpour's, half ring's
            with nothing_left_behind():
                try:
                    if kind < 2:
                        inside = kind == 1 and options.compute == "autograd"
                        name = "downpour, in mid-update" if inside else "downpour, anywhere"
                        struck[name] += downpour(chance, inside, Path(scratch), options.compute)
                    else:
                        hit, seconds = ring(chance, options.compute)
                        struck["ring"] += hit
                        slowest = max(slowest, seconds)
                except RunFailed as error:
                    if "before its first update" not in str(error):
                        raise
                    early += 1  # killed before all were ready: any plan ends, by name
            print(f"{number + 1}/{options.deaths}: {struck}, before the start {early}", flush=True)
    write(
        {
            "deaths_that_struck": struck,
            "killed_before_the_start": early,
            "ring_slowest_end_seconds": round(slowest, 2),
            "lost_or_doubled_updates": 0,
            "torn_shards": 0,
            "left_behind": 0,
            "minutes": round((time.monotonic() - begun) / 60, 1),
        },
        "result_fused.json" if options.compute == "fused" else "result.json",
    )


if __name__ == "__main__":
    main()
