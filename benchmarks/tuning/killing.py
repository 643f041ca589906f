"""SIGKILL to the tuner or a worker at random moments: python benchmarks/tuning/killing.py [--kills 100] [--seed 0]

Searches take turns until so many processes were killed. After each tuning is over, its journal is compared with that of
an undisturbed one: each configuration evaluated exactly once, nothing lost, the same decisions.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import write
from paceline.testing.killed_tunings import disturb, faults

SEARCHES = ("grid", "successive_halving:sampler=grid", "asha", "pbt", "hyperband", "median_stopping")
EACH = 10  # kills of one tuning, at most


def main(kills: int, seed: int) -> dict[str, Any]:
    chance, found = random.Random(seed), []
    left = kills
    for search in itertools.cycle(SEARCHES):
        if left <= 0:
            break
        with tempfile.TemporaryDirectory() as folder:
            told = disturb(Path(folder), search, chance, min(left, EACH))
            found.append({"search": search, **vars(told), "faults": faults(Path(folder), search)})
        left -= told.tuner + told.workers
        print(found[-1], flush=True)
    return {
        "tunings": found, "kills_of_the_tuner": sum(each["tuner"] for each in found),
        "kills_of_workers": sum(each["workers"] for each in found),
        "faults": [fault for each in found for fault in each["faults"]],
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    figures = main(given.kills, given.seed)
    write(figures, "killing.json")
    sys.exit(bool(figures["faults"]))
