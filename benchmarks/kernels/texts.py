"""What narrower vectors reach, and what the comparison with PyTorch before the first update costs.

    python benchmarks/kernels/texts.py

Widths in turn, one thread, seconds of a core; for vectors of 32 bytes without AVX-512, as on a machine that lacks it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import in_turn, write

from paceline.kernels import build, fuse
from paceline.kernels.comparison import FEW, _note
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.measure.networks import NETWORKS, SGD, Network
from paceline.kernels.memory import Target
from paceline.kernels.processors import Cpu, Form, Runner
from paceline.kernels.weights import OneModel

ROUNDS, LEAST = 7, 0.05  # rounds, and seconds of an epoch
MINUTE = 60.0
NARROW = "g++ -mno-avx512f"


def widths(network: Network) -> dict[str, Any]:
    """Milliseconds of a core for a sample by vectors of 64 and of 32 bytes, and the median of their ratios."""
    x, y = network.data(4096)
    fused = {}
    for width, registers, command in ((64, 32, "g++"), (32, 16, NARROW)):
        os.environ["CXX"] = command
        build.compiler.cache_clear()
        target = Target(width, "float", registers, shares=True, pixels=network.batch <= 2)
        torch.manual_seed(0)
        weights, form = OneModel(network.make(), SGD), Form(target=lambda real, batch, it=target: it)
        fused[width] = Fused(weights, loss_kind(nn.CrossEntropyLoss()), network.batch, Runner(Cpu(1, form)))
        fused[width].prepare(x, y)
    count = 64
    while _epoch(fused[64], x, y, count) * count < LEAST:
        count *= 2
    times = in_turn({width: partial(_epoch, each, x, y, count) for width, each in fused.items()}, ROUNDS, 1, True)
    ratio = statistics.median(narrow / wide for wide, narrow in zip(times[64], times[32], strict=True))
    return {**{str(width): 1e3 * min(each) for width, each in times.items()}, "ratio": ratio}


def _epoch(fused: Fused, x: torch.Tensor, y: torch.Tensor, count: int) -> float:
    """Seconds of a core that a sample takes."""
    order = torch.randint(len(x), (count,), generator=torch.Generator().manual_seed(0))
    begin = time.process_time()
    fused.train_epoch(x, y, order)
    return (time.process_time() - begin) / count


def guard(network: Network) -> dict[str, float]:
    """Seconds of a core that the comparison takes: the first time in a process, and the least of several."""
    x, y = network.data(max(network.batch, FEW))
    fused = fuse(network.make(), nn.CrossEntropyLoss(), SGD, network.batch, threads=1)
    compiled = fused.compiled(x)
    times = []
    for compares in (True, True, True, False, False):
        _note(compiled.program.file).unlink(missing_ok=True)
        compiled.compared = not compares
        begin = time.process_time()
        fused.prepare(x, y)
        times.append(time.process_time() - begin)
    return {"first": times[0] - min(times[3:]), "next": min(times[1:3]) - min(times[3:])}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ["PACELINE_CACHE"] = place
        found: dict[str, Any] = {"widths": {}, "guard": {}}
        for network in NETWORKS:
            found["guard"][network.name] = cost = guard(network)
            found["widths"][network.name] = took = widths(network)
            print(
                f"{network.name}: 64 bytes {took['64']:.4f} ms a sample, 32 bytes {took['32']:.4f}, "
                f"{took['ratio']:.2f} times; compared in {cost['first']:.3f} s, "
                f"{cost['first'] / MINUTE:.2%} of a minute",
                flush=True,
            )
        write(found, "texts.json")


if __name__ == "__main__":
    main()
