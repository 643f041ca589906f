"""What the trace, which is always on, costs of a step of `mnist-dnn`: writing its rows, reading the clock, draining."""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from time import perf_counter_ns as now

import paceline as pl
from paceline.runtime.runs.trace import Kind, TraceRing, TraceWriter
from paceline.training.jobs.built_ins import IdxMissing
from paceline.training.jobs.loading import load_job

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

ROWS = 10_000


def nanoseconds_per_row() -> tuple[float, float]:
    """(for the worker that writes it, for the parent that drains it into the run's file)"""
    ring = TraceRing(memoryview(bytearray(TraceRing.size())))
    begun = now()
    for number in range(ROWS):
        start, end = now(), now()
        ring.write(Kind.APPLY, 0, number, 0, number, number + 1, start, end, 0, 100, 440_400, 0.5)
    written = now()
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder) / "trace.arrow", begun)
        drained = now()
        writer.append(ring.drain())
        done = now()
        writer.close()
    return (written - begun) / ROWS, (done - drained) / ROWS


def main() -> None:
    warnings.simplefilter("ignore", IdxMissing)
    pairs = [nanoseconds_per_row() for _ in range(9)]
    writing, draining = (statistics.median(p[side] for p in pairs) for side in (0, 1))
    shares = {}
    for plan in ("sequential", "ring:workers=2", "downpour:workers=2"):
        run = pl.train(load_job("mnist-dnn"), plan, folder=None, max_updates=3000)
        rows = len(run.trace) / len(run.trace.of_kind(Kind.COMPUTE))  # of a worker's step
        workers = run.summary()["workers"]
        in_step = run.summary()["plan"].startswith("downpour")
        step = run.summary()["seconds"] * 1e9 / 3000 * (workers if in_step else 1)
        shares[plan] = round(rows * (writing + draining) / step, 4)
        print(f"{plan}: {rows:.1f} rows in a step of {step / 1e3:.0f} us: {shares[plan]:.2%}", flush=True)
    write(
        {"writing_a_row_ns": round(writing), "draining_a_row_ns": round(draining), "share_of_a_step": shares},
    )


if __name__ == "__main__":
    main()
