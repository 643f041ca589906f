"""What the planner's models say of published results, from the published inputs: python benchmarks/published/run.py

A figure that a paper does not state (a bandwidth, say) is fitted to one of its rows, which is then marked; the other
rows are predicted.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from paceline.algorithms.collectives.rings import Ring
from paceline.algorithms.schedules import BACKWARD, FORWARD
from paceline.algorithms.schedules.clock import Place, Walk, clocked
from paceline.algorithms.schedules.worker import Compute, Effect
from paceline.algorithms.splits import Held, SplitNode
from paceline.algorithms.splits.derivation import PARAMETER, derive
from paceline.algorithms.splits.recipes import OneWeirdTrick, Tensor
from paceline.planning.planner.facts import ModelDivision
from paceline.planning.planner.split_search import division_of
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.views import Parts
from paceline.plans.plan import make

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from harness import write  # noqa: E402

FLOAT = 4


class Row(NamedTuple):
    """One figure of a paper, and ours."""

    table: str
    case: str
    published: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


# --- GPipe: normalized throughput, table 2 of Huang et al., NeurIPS 2019 ---

GPIPE = {
    "AmoebaNet": {(2, 1): 1.0, (2, 4): 1.07, (2, 32): 1.21, (4, 1): 1.13, (4, 4): 1.26, (4, 32): 1.84, (8, 1): 1.38,
                  (8, 4): 1.72, (8, 32): 3.48},
    "Transformer": {(2, 1): 1.0, (2, 4): 1.7, (2, 32): 1.8, (4, 1): 1.07, (4, 4): 3.2, (4, 32): 3.4, (8, 1): 1.3,
                    (8, 4): 4.8, (8, 32): 6.3},
}  # fmt: skip


def gpipe() -> list[Row]:
    """Stages of equal length that compute their forward again, messages without cost: the schedule's own table."""
    base = _gpipe_seconds(2, 1)
    return [
        Row("GPipe", f"{model}, {workers} accelerators, {micro} micro-batches", published,
            base / _gpipe_seconds(workers, micro), (workers, micro) == (2, 1))
        for model, rows in GPIPE.items()
        for (workers, micro), published in rows.items()
    ]  # fmt: skip


def _gpipe_seconds(workers: int, micro: int) -> float:
    method = make("gpipe", workers=workers, micro_batches=micro, recompute="all").method
    assert isinstance(method, Pipeline)
    piece = 1.0 / workers / micro
    parts = {FORWARD: piece, BACKWARD: 3 * piece}  # twice a forward, and the forward again

    def lasts(place: Place, effect: Effect) -> float:
        return parts.get(effect.work.what, 0.0) if isinstance(effect, Compute) else 0.0

    return max(timed.end for timed in clocked(Walk.of(method.table(workers, [micro])), lasts))


# --- one weird trick: hours of 90 epochs, table 1 of Krizhevsky, 2014 ---

TRICK = {2: (256, 50.24), 4: (512, 26.20), 8: (1024, 15.68)}
TRICK_ALONE, EPOCHS, IMAGES, BATCH = 98.05, 90, 1_281_167, 128


def one_weird_trick() -> list[Row]:
    """Compute as one GPU does; the bytes are those of the plan; the links' bandwidth is fitted to two GPUs."""
    alone = _seconds(TRICK_ALONE, BATCH)
    two = _alexnet(2).bytes / (_seconds(TRICK[2][1], TRICK[2][0]) - alone)
    rows = []
    for workers, (batch, hours) in TRICK.items():
        step = alone + _alexnet(workers).bytes / two
        predicted = TRICK_ALONE / (step * EPOCHS * IMAGES / batch / 3600)
        rows.append(Row("one weird trick", f"{workers} GPUs, speed-up", TRICK_ALONE / hours, predicted, workers == 2))
    return rows


def _seconds(hours: float, batch: int) -> float:
    return hours * 3600 / (EPOCHS * IMAGES / batch)


def _alexnet(workers: int) -> ModelDivision:
    """The network of the paper: five convolutions in one tower, three dense layers."""
    batch, maps, size = BATCH * workers, ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)), 224
    nodes: list[SplitNode] = []
    last, shape = "images", (batch, 3, size, size)
    for number, ((before, after, kernel), points) in enumerate(zip(maps, (27, 13, 13, 13, 6), strict=True)):
        made = (batch, after, points, points)  # with the pooling that follows
        nodes.append(_layer(f"conv{number}", "convolution", last, shape, made, (after, before, kernel, kernel)))
        last, shape = nodes[-1].name, made
    flat = (batch, 256 * 36)
    nodes.append(SplitNode("flatten", "reshape", (last,), (shape,), flat))
    for number, (before, after) in enumerate(((9216, 4096), (4096, 4096), (4096, 1000))):
        taken = nodes[-1].name
        nodes.append(_layer(f"dense{number}", "linear", taken, (batch, before), (batch, after), (after, before)))
    return _division(nodes, "one_weird_trick", OneWeirdTrick(), (batch, 3, size, size), workers)


def _layer(
    name: str, kind: str, takes: str, before: tuple[int, ...], after: tuple[int, ...], weight: tuple[int, ...]
) -> SplitNode:
    held = Held("weight", f"{name}.weight", weight), Held("bias", f"{name}.bias", weight[:1])
    return SplitNode(name, kind, (takes,), (before,), after, held, name)


def _division(
    nodes: Sequence[SplitNode], plan: str, recipe: OneWeirdTrick | Tensor, shape: tuple[int, ...], workers: int
) -> ModelDivision:
    first = nodes[0].takes[0]
    needs = {node.name for node in nodes} | {PARAMETER + held.name for node in nodes for held in node.held}
    program = derive(nodes, {first: shape}, [nodes[-1].name], needs, workers, recipe.choose)
    parts = make(plan, workers=workers).method.picture(workers)
    assert isinstance(parts, Parts)
    return division_of(program, parts, {}, FLOAT)


# --- DistBelief: one model on several machines, figure 3 of Dean et al., NIPS 2012 ---

SPEECH = (440, 2560, 2560, 2560, 2560, 8192)
DISTBELIEF, SAMPLES, MACHINE = 2.2, 100, 50e9  # samples of a step and FLOP/s of a machine are not stated


def distbelief() -> list[Row]:
    """The dense speech net of 42 million parameters, split by `tensor`; the bandwidth is fitted to eight machines.

    What the paper says of its shape is judged: eight machines are the fastest, more are slower.
    """
    alone = 6.0 * SAMPLES * sum(a * b for a, b in pairwise(SPEECH)) / MACHINE
    divisions = {workers: _speech(workers) for workers in (2, 4, 8, 16, 32)}
    bandwidth = divisions[8].bytes / (alone / DISTBELIEF - alone / 8)
    speedups = {workers: alone / (alone / workers + found.bytes / bandwidth) for workers, found in divisions.items()}
    best = max(speedups, key=speedups.__getitem__)
    return [
        Row("DistBelief", "speech, 8 machines, speed-up", DISTBELIEF, speedups[8], True),
        Row("DistBelief", "speech, machines that are fastest", 8, best),
    ]


def _speech(workers: int) -> ModelDivision:
    nodes: list[SplitNode] = []
    for number, (before, after) in enumerate(pairwise(SPEECH)):
        taken = nodes[-1].name if nodes else "frames"
        nodes.append(_layer(f"fc{number}", "linear", taken, (SAMPLES, before), (SAMPLES, after), (after, before)))
    return _division(nodes, "tensor", Tensor(), (SAMPLES, SPEECH[0]), workers)


# --- TensorFlow's null model: milliseconds of a dense step, section 6.2 of Abadi et al., OSDI 2016 ---

SERVERS = 16
NULL = {"dense 100 MB": (100e6, 147.0, 613.0), "dense 1 GB": (1e9, 1010.0, 7160.0)}


def null_model() -> list[Row]:
    """The worker's link is fitted to one worker; with 100 the servers' links, of the same bandwidth, are the bound."""
    rows = []
    for case, (size, one, hundred) in NULL.items():
        bandwidth = 2 * size / (one / 1e3)
        servers = 100 * size / SERVERS / bandwidth * 1e3
        rows.append(Row("null model", f"{case}, 100 workers, ms, pull and push at once", hundred, max(one, servers)))
        rows.append(Row("null model", f"{case}, 100 workers, ms, one after the other", hundred, max(one, 2 * servers)))
    return rows


# --- PipeDream: speed-up over data parallelism, table 1 of Narayanan et al., SOSP 2019 ---

#: GPUs, bytes of all parameters and of the dense layers, seconds of 64 images on one V100. The seconds are not stated
#: with the table; about 0.28 is usual in single precision.
VGG = (16, 138.3e6 * FLOAT, 123.6e6 * FLOAT, 0.28)
#: Bytes per second between servers, servers, and the published speed-up.
PIPEDREAM = {
    "VGG-16, 4 servers of 4, 10 Gbit/s": (1.25e9, 4, 5.28), "VGG-16, 2 servers of 8, 25 Gbit/s": (3.1e9, 2, 2.98),
}  # fmt: skip


def pipedream() -> list[Row]:
    """The configuration 15-1: convolutions on 15 GPUs, dense layers on one; nothing overlaps in either."""
    workers, whole, dense, seconds = VGG
    rows = []
    for case, (bandwidth, servers, published) in PIPEDREAM.items():
        ring = Ring()
        parallel = seconds + ring.seconds(servers, whole, 0.0, bandwidth)
        stage = (seconds + ring.seconds(servers, whole - dense, 0.0, bandwidth)) / (workers - 1)
        rows.append(Row("PipeDream", f"{case}, speed-up", published, parallel / workers / stage))
    return rows


PARTS = (gpipe, one_weird_trick, distbelief, null_model, pipedream)


def main() -> None:
    rows = [row for part in PARTS for row in part()]
    print("| table | case | published | predicted | error |\n|---|---|---:|---:|---:|")
    for row in rows:
        error = "fitted" if row.fitted else f"{row.error:+.0%}"
        print(f"| {row.table} | {row.case} | {row.published:.4g} | {row.predicted:.4g} | {error} |")
    medians = {}
    for table in dict.fromkeys(row.table for row in rows):
        medians[table] = statistics.median(abs(r.error) for r in rows if r.table == table and not r.fitted)
        print(f"\n{table}: median error of the rows that were not fitted {medians[table]:.0%}")
    write({"rows": [{**row._asdict(), "error": row.error} for row in rows], "median_errors": medians})


if __name__ == "__main__":
    main()
