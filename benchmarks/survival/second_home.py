"""What a run that nothing disturbs pays for its second home: two nodes, with it and without, in turn.

    python benchmarks/survival/second_home.py [--rounds 10] [--seconds 10]

Without it no rank but the first can lead, so the head sends its deputy nothing. Each figure is the slope between a
short and a long training: of the seconds that the run says, and of the CPU seconds of all its processes. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paceline.interfaces.testing.survival.nodes import free_port

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from harness import in_turn, interval, median, write  # noqa: E402

JOB = HERE.parent / "cluster_speed" / "job.py"
#: The hidden width of a job, and about what each worker makes in a second.
SIZES = {"55 thousand": (64, 1000), "1 million": (660, 110)}
BATCHES = {"ring": 200, "downpour": 100}
WITH = "from paceline.interfaces.cli import main; main()"
WITHOUT = f"""
from paceline.runtime.engines.cluster.roster import Roster

Roster.moves = property(lambda self: False)
{WITH}
"""


class Cost(NamedTuple):
    """What a training takes."""

    seconds: float
    cpu: float


def trained(program: str, plan: str, hidden: int, updates: int) -> Cost:
    """Train on two nodes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(JOB), "--plan", plan, "--max-updates", str(updates), "--runs", folder, "--json", "--quiet"]
        shared = {"PACELINE_NODES": "2", "PACELINE_HEAD": f"127.0.0.1:{free_port()}", "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **shared, "HIDDEN": str(hidden), "BATCH": str(BATCHES[plan])}
        before = _cpu()
        nodes = [
            subprocess.Popen(
                [sys.executable, "-c", program, "train", *words],
                env={**environment, "PACELINE_RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        (printed, _), *_ = [node.communicate() for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0]
        return Cost(float(json.loads(printed)["seconds"]), _cpu() - before)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def per_update(program: str, plan: str, size: str, seconds: float) -> Cost:
    """Return what an update takes: the slope between a short and a long training."""
    hidden, rate = SIZES[size]
    short, long = rate, int(rate * (1 + seconds))
    first, last = (trained(program, plan, hidden, updates) for updates in (short, long))
    return Cost(*((b - a) / (long - short) for a, b in zip(first, last, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a long training, about")
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parser.parse_args()
    figures: dict[str, Any] = {"load": round(os.getloadavg()[0], 1), "rounds": options.rounds}
    for size in options.sizes.split(","):
        for plan in BATCHES:
            ways = {
                name: partial(per_update, program, plan, size, options.seconds)
                for name, program in (("with", WITH), ("without", WITHOUT))
            }
            costs = in_turn(ways, options.rounds, warm_up=1, to_and_fro=True)
            pairs = list(zip(costs["with"], costs["without"], strict=True))
            ratios = {name: [getattr(a, name) / getattr(b, name) for a, b in pairs] for name in Cost._fields}
            figures[f"{plan}, {size}"] = {
                name: {
                    "median_of_ratios": median(each, 4), "mean_and_interval": [round(x, 4) for x in interval(each)],
                    "ratios": [round(ratio, 4) for ratio in each],
                }
                for name, each in ratios.items()
            }  # fmt: skip
            print(f"{plan}, {size}: {figures[f'{plan}, {size}']}", flush=True)
    write(figures, "result-second-home.json")


if __name__ == "__main__":
    main()
