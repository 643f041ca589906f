"""Downpour and delay compensation on 4, 8 and 12 workers, beside a published report's seconds per epoch.

A core for every worker: costs measured here (a worker's gradient, an update at the shard, a lock, a copy), then
simulated. Real processes, more of them than cores: CPU time of all of them per update, between two moments of a
training that is well under way. Rounds are taken in turn; medians are reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paceline as pl
from paceline.algorithms.agenda import Agenda
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import simulate
from paceline.runtime.links.membership import Locks, RecordLock
from paceline.runtime.links.waiting import Waiter
from paceline.runtime.runs.trace import Kind
from paceline.training.jobs.loading import load_job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

REPORT = {"downpour": {4: 3.52, 8: 3.53, 12: 3.55}, "dc_asgd": {4: 3.59, 8: 3.61, 12: 3.64}}
WORKERS, SHARDS, PLANS = (4, 8, 12), (1, 2, 4, 8), ("downpour", "dc_asgd")
PARAMETER_BYTES = 55_050 * 4
CHILD = """
import sys
import paceline as pl
from paceline.training.jobs.loading import load_job
sys.path.insert(0, sys.argv[4])
from tree import nanoseconds
plan, updates, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
job = load_job("mnist-dnn").with_(test=None, epochs=10**6, batch_size=batch)
seen = []
def look(so_far):
    if not seen and so_far.updates >= updates // 6 or seen and so_far.updates >= updates * 5 // 6:
        if len(seen) < 2:
            seen.append((so_far.updates, nanoseconds()))
pl.train(job, plan, folder=None, max_updates=updates, progress=look)
(first, then), (last, now) = seen
print((now - then) / 1e9 / (last - first))
"""


# --- a core for every worker: measured costs, simulated ---------------------------------------------------------------


def measured(batch: int, rounds: int) -> dict[str, Any]:
    """Seconds of this machine, medians; one worker by itself, so nobody waits."""
    job = load_job("mnist-dnn").with_(test=None, epochs=10**6, batch_size=batch)
    computing, updating = [], dict[str, list[float]]()
    for _ in range(rounds):
        for name in PLANS:
            for shards in SHARDS:
                run = pl.train(job, f"{name}:workers=1,shards={shards}", folder=None, max_updates=1500)
                rows = run.trace.rows[run.trace.rows["update"] >= 100]
                took = (rows["end"] - rows["start"]) / 1e9
                computing.append(float(np.median(took[rows["kind"] == Kind.COMPUTE])))
                pushes = took[rows["kind"] == Kind.APPLY]
                updating.setdefault(f"{name} shards={shards}", []).append(float(np.median(pushes)))
    medians = {key: statistics.median(found) for key, found in updating.items()}
    return {"batch": batch, "compute_a_sample": statistics.median(computing) / batch, "update": medians, **_ways()}


def _ways() -> dict[str, float]:
    """A turn of a lock nobody else holds, for the latency; and how quickly the parameters are copied."""
    lock, turns = RecordLock(Locks(), 0, Waiter(0, None, lambda: False, 1.0, str), "a lock"), []
    source, target = torch.zeros(PARAMETER_BYTES // 4), torch.zeros(PARAMETER_BYTES // 4)
    copies = []
    for _ in range(2000):
        begun = time.perf_counter()
        with lock:
            between = time.perf_counter()
        turns.append(time.perf_counter() - begun)
        target.copy_(source)
        copies.append(time.perf_counter() - between)
    return {"latency": statistics.median(turns), "bandwidth": PARAMETER_BYTES / statistics.median(copies)}


def simulated(costs: dict[str, Any], samples: int, scale: float = 1.0) -> dict[str, Any]:
    """Seconds per epoch. weak: each worker passes over so many samples; strong: all together. `scale` makes a gradient
    dearer by that factor: a larger batch, or a slower framework.
    """
    found: dict[str, Any] = {}
    for name in PLANS:
        for shards in SHARDS:
            world = pl.World(
                compute=costs["compute_a_sample"] * scale, update=costs["update"][f"{name} shards={shards}"],
                latency=costs["latency"], bandwidth=costs["bandwidth"],
            )  # fmt: skip
            made: dict[str, Any] = {"weak": {}, "strong": {}, "queueing_share": {}}
            for workers in WORKERS:
                plan = Plan.parse(f"{name}:workers={workers},shards={shards}")
                for what, total in (("weak", samples * workers), ("strong", samples)):
                    trace = simulate(plan, Agenda(total, costs["batch"], 1), world, PARAMETER_BYTES)
                    seconds = float(trace.rows["end"].max()) / 1e9
                    made[what][workers] = round(seconds, 4)
                    if what == "weak":
                        pushes = trace.of_kind(Kind.APPLY)
                        made["queueing_share"][workers] = round(
                            float(pushes["waited"].sum()) / 1e9 / workers / seconds, 3
                        )
            made["weak_growth_4_to_12"] = round(made["weak"][12] / made["weak"][4] - 1, 4)
            found[f"{name} shards={shards}"] = made
    return found


def checked(costs: dict[str, Any], rounds: int) -> dict[str, float]:
    """Seconds of an epoch of two workers: real ones, a core each, by the engine's clock; and simulated ones."""
    job = load_job("mnist-dnn").with_(test=None, epochs=1, batch_size=costs["batch"])
    real = statistics.median(
        pl.train(job, "downpour:workers=2", folder=None).summary()["seconds"] for _ in range(rounds)
    )
    world = pl.World(
        compute=costs["compute_a_sample"], update=costs["update"]["downpour shards=1"],
        latency=costs["latency"], bandwidth=costs["bandwidth"],
    )  # fmt: skip
    agenda = Agenda(len(job.data[0]), costs["batch"], 1)
    trace = simulate(Plan.parse("downpour:workers=2"), agenda, world, PARAMETER_BYTES)
    return {"real": round(real, 4), "simulated": round(float(trace.rows["end"].max()) / 1e9, 4)}


# --- real processes, more of them than cores --------------------------------------------------------------------------


def cpu_an_update(plan: str, updates: int, batch: int) -> float:
    """Seconds of CPU of all processes of one training, between a sixth and five sixths of its updates."""
    command = [sys.executable, "-W", "ignore", "-c", CHILD, plan, str(updates), str(batch), str(Path(__file__).parent)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout)


def oversubscribed(plans: list[str], rounds: int, updates: int, batch: int) -> dict[str, Any]:
    slopes: dict[str, dict[int, list[float]]] = {name: {w: [] for w in WORKERS} for name in plans}
    loads = []
    for number in range(rounds):
        for name in plans:
            for workers in WORKERS if number % 2 == 0 else WORKERS[::-1]:
                loads.append(os.getloadavg()[0])
                text = f"{name}{',' if ':' in name else ':'}workers={workers}"
                slopes[name][workers].append(cpu_an_update(text, updates, batch) * 1e6)
                print(f"round {number + 1}, {text}: {slopes[name][workers][-1]:.0f} us of CPU an update", flush=True)
    found: dict[str, Any] = {"updates": updates, "rounds": rounds, "load_before": " ".join(f"{v:.1f}" for v in loads)}
    for name, by in slopes.items():
        medians = {w: statistics.median(values) for w, values in by.items()}
        growth = [last / first - 1 for first, last in zip(by[4], by[12], strict=True)]
        found[name] = {
            "microseconds_an_update": {w: round(m, 1) for w, m in medians.items()},
            "all": {w: " ".join(f"{v:.1f}" for v in values) for w, values in by.items()},
            "growth_4_to_12": round(medians[12] / medians[4] - 1, 4),
            "growth_by_round": " ".join(f"{g:.4f}" for g in growth),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--samples", type=int, default=60_000, help="of one worker's pass")
    parser.add_argument("--updates", type=int, default=6000, help="of a training on real processes")
    parser.add_argument(
        "--real", default="downpour,dc_asgd,ceiling", help="plans on real processes; a + stands for a comma"
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes; writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if options.quick else options.rounds
    updates = 3000 if options.quick else options.updates
    figures: dict[str, Any] = {"report": REPORT, "samples": options.samples}
    figures["costs"] = measured(options.batch, rounds)
    figures["load_while_measuring_costs"] = round(os.getloadavg()[0], 1)
    print({key: value for key, value in figures["costs"].items() if key != "update"}, figures["costs"]["update"])
    figures["simulated"] = simulated(figures["costs"], options.samples)
    figures["two_workers"] = checked(figures["costs"], rounds)
    print("two workers, seconds of an epoch:", figures["two_workers"])
    dearer = REPORT["downpour"][4] / figures["simulated"]["downpour shards=1"]["weak"][4]
    figures["simulated_with_the_reports_compute"] = {
        "factor": round(dearer, 2), **simulated(figures["costs"], options.samples, dearer)
    }  # fmt: skip
    for kind in ("simulated", "simulated_with_the_reports_compute"):
        for name in (f"{plan} shards={shards}" for plan in PLANS for shards in SHARDS):
            print(kind, name, figures[kind][name], flush=True)
    plans = [name.replace("+", ",") for name in options.real.split(",")]
    figures["oversubscribed"] = oversubscribed(plans, rounds, updates, options.batch)
    for name in plans:
        print(name, figures["oversubscribed"][name])
    if not options.quick:
        write(figures)


if __name__ == "__main__":
    main()
