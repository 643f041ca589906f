"""What simulating thousands of workers costs, on one core: python benchmarks/simulated_scale/run.py

Each case runs in a process of its own. Seconds are those of the processor, so that other programs do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline.plans.plan import make
from paceline.runtime.engines.virtual import World, simulate_totals

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from harness import write  # noqa: E402

SAMPLES, COMPUTE, SIZE = 100, 1e-4, 220_200
#: Plan, workers, updates of each, the bound in seconds, and whether nodes fail and lie in racks.
CASES: dict[str, tuple[str, int, int, float, bool]] = {
    "4,096 asynchronous workers x 100 updates": ("downpour", 4096, 100, 10.0, False),
    "16,384 workers in a ring x 1,000 updates": ("ring", 16384, 1000, 10.0, False),
    "1,024 workers with failures and racks x 1,000 updates": ("downpour", 1024, 1000, 60.0, True),
    "256 asynchronous workers x 400 updates": ("downpour", 256, 400, math.inf, False),
    "1,024 asynchronous workers x 100 updates": ("downpour", 1024, 100, math.inf, False),
}


def one(name: str) -> dict[str, Any]:
    """Simulate a case in this process."""
    plan_name, workers, each, _, fails = CASES[name]
    plan = make(plan_name, workers=workers)
    updates = each if plan.traits.synchronous else each * workers
    batch = SAMPLES * (workers if plan.traits.synchronous else 1)
    # The server is fast enough for all of them: otherwise what is simulated is a queue.
    world = World(compute=COMPUTE, update=1e-9, straggle=(0.01, 5.0))
    if fails:
        seconds = each * SAMPLES * COMPUTE
        world = World(compute=COMPUTE, update=1e-9, straggle=(0.01, 5.0), rack=32)
        world = world.with_failures(workers, 5 * seconds, 0.1 * seconds, seconds)
    began = time.process_time()
    totals = simulate_totals(plan, plan.agenda(batch * updates, batch), world, SIZE)
    cpu = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cpu_seconds": cpu, "peak_mib": peak, "microseconds_a_push": cpu / updates * 1e6,
        "mean_staleness": totals.mean_staleness, "deaths": len(world.deaths),
    }  # fmt: skip


def slope(rows: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Fit microseconds of a push = first + second x log2(workers)."""
    mine = [(math.log2(CASES[n][1]), row["microseconds_a_push"]) for n, row in rows.items() if "asynchronous" in n]
    second, first = np.polyfit([x for x, _ in mine], [y for _, y in mine], 1)
    return float(first), float(second)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--case", choices=CASES)
    options = given.parse_args()
    if options.case:
        print(json.dumps(one(options.case)))
        return
    rows: dict[str, dict[str, Any]] = {}
    for name, (*_, bound, _) in CASES.items():
        ran = subprocess.run([sys.executable, __file__, "--case", name], capture_output=True, text=True, check=True)
        rows[name] = {**json.loads(ran.stdout), "bound": bound if math.isfinite(bound) else None}
        print(f"{name}: {rows[name]['cpu_seconds']:.1f} s, {rows[name]['peak_mib']:.0f} MiB", flush=True)
    first, second = slope(rows)
    print(f"a push costs {first:.1f} + {second:.2f} log2(workers) microseconds")
    write({"cases": rows, "push_microseconds": {"constant": first, "per_log2_workers": second}})


if __name__ == "__main__":
    main()
