"""Seven networks by generated code, by PyTorch as it is, and by `torch.compile` in its best mode.

    python benchmarks/kernels/compiled.py [--rounds 5] [--networks GRU] [--threads 1,2] [--vectors 32]

All make the same steps in turn, round after round, with one thread and with two: rows of tensors in memory, shuffled
once an epoch, PyTorch's fused SGD. Both modes of the compiler are warmed up first, and the faster one is measured.
Seconds of a core are those of this process and all its threads; on a busy machine they say more than seconds of a
clock. `--vectors 32` does without AVX-512 on all sides, as on a machine that lacks it. Figures of other networks,
threads and vectors stay in compiled.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import in_turn, into_page, median, read, spread, table, write

LEAST = 0.2  # seconds of PyTorch that a round of one way takes
MODES = ("default", "max-autotune-no-cudagraphs")
NARROW = "g++ -mno-avx512f"
WAYS = ("generated code", "eager", "compiled")


class Seconds(NamedTuple):
    """Of one sample."""

    clock: float
    core: float


def networks() -> list[Any]:
    """The networks; none of them is among those that generated code is tuned on."""
    from torch import nn

    from paceline.kernels.measure.networks import Encoder, LastState, Network
    from paceline.training.jobs.modules import Residual

    class Recurrent(LastState):
        def __init__(self) -> None:
            super().__init__(12, 48)
            self.recurrent = nn.GRU(12, 48, batch_first=True)  # type: ignore[assignment]
            self.head = nn.Linear(48, 10)

    def tiny() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 10))

    def wide() -> nn.Module:
        return nn.Sequential(
            nn.Linear(512, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10)
        )  # fmt: skip

    def normed() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
            nn.Flatten(), nn.Linear(384, 10),
        )  # fmt: skip

    def residual() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU(), Residual(24), Residual(24),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
        )  # fmt: skip

    return [
        Network("tiny MLP", tiny, (12,), 32, 8192),
        Network("wide MLP", wide, (512,), 256, 2048),
        Network("conv, group norm", normed, (3, 20, 20), 32, 1024),
        Network("GRU", Recurrent, (24, 12), 48, 1536),
        Network("LSTM", lambda: LastState(12, 40), (24, 12), 48, 1536),
        Network("residual CNN", residual, (3, 24, 24), 32, 1024),
        Network("transformer", lambda: Encoder(500, 32, 48), (32,), 24, 768, 500),
    ]


def timed(epoch: Callable[[int], object], samples: int) -> Seconds:
    clock, core = time.perf_counter(), time.process_time()
    epoch(samples)
    return Seconds((time.perf_counter() - clock) / samples, (time.process_time() - core) / samples)


def generated(network: Any, threads: int, narrow: bool) -> Callable[[int], object]:
    """An epoch of so many samples in generated code."""
    import torch
    from torch import nn

    from paceline.kernels import fuse
    from paceline.kernels.fused import Fused
    from paceline.kernels.losses import loss_kind
    from paceline.kernels.measure.networks import SGD
    from paceline.kernels.memory import Target
    from paceline.kernels.processors import Cpu, Form, Runner
    from paceline.kernels.weights import OneModel

    x, y = network.data(network.samples)
    if narrow:
        target = Target(32, "float", 16, shares=True, pixels=network.batch <= 2)
        runner = Runner(Cpu(threads, Form(target=lambda real, batch: target)))
        fused = Fused(OneModel(network.make(), SGD), loss_kind(nn.CrossEntropyLoss()), network.batch, runner)
    else:
        fused = fuse(network.make(), nn.CrossEntropyLoss(), SGD, network.batch, threads=threads)
    fused.prepare(x, y)
    return lambda samples: fused.train_epoch(x, y, torch.randperm(len(x))[:samples])


def pytorch(network: Any, mode: str | None) -> Callable[[int], object]:
    """An epoch of so many samples in PyTorch; `mode` is that of its compiler, None without it."""
    import torch
    from torch import Tensor, nn

    from paceline.kernels.measure.networks import RATE

    model, loss = network.make(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
    x, y = network.data(network.samples)

    def forward(inputs: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = loss(model(inputs), labels)
        return value

    step = torch.compile(forward, mode=mode) if mode else forward

    def epoch(samples: int) -> None:
        order = torch.randperm(len(x))[:samples]
        inputs, labels = x[order], y[order]
        for start in range(0, samples, network.batch):
            optimizer.zero_grad()
            step(inputs[start : start + network.batch], labels[start : start + network.batch]).backward()
            optimizer.step()

    epoch(2 * network.batch)
    return epoch


def measure(network: Any, threads: int, narrow: bool, rounds: int) -> dict[str, Any]:
    """The seconds of a sample by each way in every round, and the mode that the compiler was measured in."""
    import torch
    from torch._inductor import config as inductor

    torch.set_num_threads(threads)
    inductor.cpp.simdlen = 256 if narrow else None
    modes = {mode: pytorch(network, mode) for mode in MODES}
    few = 4 * network.batch
    trials = in_turn({mode: partial(timed, epoch, few) for mode, epoch in modes.items()}, 3, 1)
    best = min(MODES, key=lambda mode: min(each.core for each in trials[mode]))
    ways = dict(zip(WAYS, (generated(network, threads, narrow), pytorch(network, None), modes[best]), strict=True))
    batches = round(LEAST / timed(ways["eager"], few).core) // network.batch
    samples = network.batch * min(max(4, batches), network.samples // network.batch)
    seconds = in_turn({name: partial(timed, epoch, samples) for name, epoch in ways.items()}, rounds, 1, True)
    return {"mode": best, "load": os.getloadavg()[0], "rounds": {name: list(each) for name, each in seconds.items()}}


def page(rows: dict[str, Any]) -> str:
    """The table of README.md: medians of the rounds' ratios, with their range, by seconds of a core and by a clock."""
    header = ("network", "threads:", "vectors:", "generated, µs a sample of a core:", "eager / generated:",
              "compiled / generated:", "by a clock: eager:", "compiled:", "mode", "load:")  # fmt: skip
    lines: list[tuple[object, ...]] = []
    for key, row in rows.items():
        name, threads, vectors = key.split("; ")
        rounds = {way: [Seconds(*each) for each in values] for way, values in row["rounds"].items()}
        own = rounds["generated code"]
        cells = []
        for unit in ("core", "clock"):
            for way in WAYS[1:]:
                pairs = zip(rounds[way], own, strict=True)
                ratios = [getattr(other, unit) / getattr(mine, unit) for other, mine in pairs]
                least, most = spread(ratios)
                cells.append(f"**{median(ratios):.2f}** ({least:.2f}-{most:.2f})")
        micros = f"{1e6 * median(each.core for each in own):.2f}"
        lines.append((name, threads, vectors, micros, *cells, row["mode"].partition("-no-")[0], f"{row['load']:.1f}"))
    return table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", default="", help="some of them, as in GRU,LSTM")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--vectors", type=int, default=64, choices=(32, 64))
    options = parser.parse_args()
    if narrow := options.vectors == 32:  # before PyTorch is imported, which looks at the processor then
        os.environ["ATEN_CPU_CAPABILITY"], os.environ["CXX"] = "avx2", NARROW
    rows = read("compiled.json").get("rows", {})
    with tempfile.TemporaryDirectory() as place:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = place
        for network in networks():
            if options.networks and network.name not in options.networks.split(","):
                continue
            for threads in map(int, options.threads.split(",")):
                key = f"{network.name}; {threads}; {options.vectors}"
                rows[key] = measure(network, threads, narrow, options.rounds)
                print(page({key: rows[key]}), flush=True)
                write({"rows": rows}, "compiled.json", print_path=False)
                into_page(page(rows), "compiled")


if __name__ == "__main__":
    main()
