"""One node of a run on a cluster, or a run on one machine that may be ended and resumed; prints what it trained."""

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
    asked = json.loads(sys.argv[1])
    job = JOBS[asked.pop("job")]()
    try:
        run = pl.train(job, **asked)
    except pl.RunFailed as error:
        print(json.dumps({"failed": str(error)[:200]}))
        sys.exit(1)
    summary = run.summary()
    print(json.dumps({"sha": summary["parameters_sha256"], "deaths": len(summary["deaths"]), "run": str(run.path)}))
