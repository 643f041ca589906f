"""One node of runs on a cluster, one after another; prints what each of them has trained."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch

import paceline as pl

sys.path.insert(0, str(Path(__file__).parent))
from jobs import JOBS

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    plan, folder, *names = sys.argv[1:]
    found = {}
    for name in names:
        run = pl.train(JOBS[name](folder), plan, engine="cluster", folder=Path(folder) / name)
        summary = run.summary()
        found[name] = {"sha": summary["parameters_sha256"], "deaths": len(summary["deaths"])}
        print(json.dumps(found), flush=True)
