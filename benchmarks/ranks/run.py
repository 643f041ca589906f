"""Epochs of `mnist-cnn` by 1, 2 and 4 ranks of MPI, and by 2 threads of one process, round by round."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import in_turn, median, write

MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
WAYS = {"1 rank": (1, 1), "2 ranks": (2, 1), "4 ranks": (4, 1), "1 rank of 2 threads": (1, 2)}
PROGRAM = """
import hashlib, json, sys, time
from functools import partial
import torch
from mpi4py import MPI
from paceline.training.jobs.loading import load_job
from paceline.kernels import fuse_ranks

world, threads, epochs = MPI.COMM_WORLD, int(sys.argv[1]), int(sys.argv[2])
job = load_job("mnist-cnn")
net, (x, y) = job.make_model(), job.data
team = fuse_ranks(net, job.loss, partial(job.make_optimizer, net), 64, threads=threads)
seconds = []
for epoch in range(epochs):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    world.Barrier()
    start = time.perf_counter()
    team.train_epoch(x, y, order)
    world.Barrier()
    seconds.append(time.perf_counter() - start)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
team.close()
if world.rank == 0:
    print(json.dumps({"seconds": seconds[1:], "parameters": digest}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    digests = set()

    def epoch(program: Path, ranks: int, threads: int) -> float:
        command = [MPIEXEC, "-n", ranks, sys.executable, "-W", "ignore", program, threads, options.epochs]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=300)
        found = json.loads(done.stdout)
        digests.add(found["parameters"])
        return median(found["seconds"])

    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        rounds = in_turn({name: partial(epoch, program, *way) for name, way in WAYS.items()}, options.rounds)
    seconds = {name: median(each) for name, each in rounds.items()}
    rows = {
        name: {
            "seconds_per_epoch": round(seconds[name], 4),
            "speed-up": round(seconds["1 rank"] / seconds[name], 2),
            "efficiency": round(seconds["1 rank"] / seconds[name] / (ranks * threads), 2),
        }
        for name, (ranks, threads) in WAYS.items()
    }
    for name, row in rows.items():
        print(name, row)
    assert len(digests) == 1, "ranks made other bits"
    write({"rows": rows, "four_over_two": round(seconds["4 ranks"] / seconds["2 ranks"], 2)})


if __name__ == "__main__":
    main()
