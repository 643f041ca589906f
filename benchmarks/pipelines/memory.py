"""Peak memory of each worker, measured, beside the figure of its table; and a model that fits only when it is cut.

    python benchmarks/pipelines/memory.py [--nets wide,samples,small,convolutions,transformer,recurrent,lstm]

Measured is the most memory of its own that a worker process has while it trains, less what it had before it got its
stages: neither libraries' files nor shared memory (data, messages).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paceline as pl
from paceline.errors import PlanError
from paceline.plans.plan import Plan
from paceline.runtime.engines.setup import set_up
from paceline.training.data.source import Reader
from paceline.training.stages.memory_estimate import needed, weigh_all

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

MIB = 1 << 20
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.001),
}
PLANS = ("gpipe:", "gpipe:recompute=all,", "one_f_one_b:", "zero_bubble:", "interleaved:", "pipedream:", "spectrain:")
SIZES = (0, 5, 10, 20, 60, 100, 1000)  # MiB
CAP = 450  # MiB


def linear(width: int) -> nn.Module:
    pairs = [part for _ in range(8) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*pairs, nn.Linear(width, 10))


def convolutions() -> nn.Module:
    blocks = [
        part for _ in range(7) for part in (nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    ]
    enter, leave = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()), (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*enter, *blocks, *leave, nn.Linear(32, 10))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(x).mean(1))
        return result


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.head = kind(64, 128, num_layers=4, dropout=0.1, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(x)[0][:, -1])
        return result


@dataclass(frozen=True)
class Net:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a sample
    batch: int
    two: str  # cuts into two stages
    four: str


NETS = {
    "wide": Net(partial(linear, 2048), (2048,), 128, "8", "4+8+12"),
    "samples": Net(partial(linear, 512), (512,), 4096, "8", "4+8+12"),
    "small": Net(partial(linear, 384), (384,), 512, "8", "4+8+12"),
    "convolutions": Net(convolutions, (3, 32, 32), 64, "11", "5+11+17"),
    "transformer": Net(
        Encoder, (64, 128), 64, "encoder.layers.3", "encoder.layers.1+encoder.layers.3+encoder.layers.5"
    ),
    "recurrent": Net(
        partial(Recurrent, nn.GRU), (32, 64), 64, "rnn_dropout_l2", "rnn_dropout_l1+rnn_dropout_l2+rnn_dropout_l3"
    ),
    "lstm": Net(
        partial(Recurrent, nn.LSTM), (64, 64), 128, "rnn_dropout_l2", "rnn_dropout_l1+rnn_dropout_l2+rnn_dropout_l3"
    ),
}


def job(optimizer: str, net: Net, batch: int) -> pl.Job:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * batch, *net.shape, generator=generator)
    y = torch.randint(10, (2 * batch,), generator=generator)
    return pl.Job(
        model=net.model, data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=OPTIMIZERS[optimizer],
        batch_size=batch, epochs=5,
    )  # fmt: skip


def told(made: pl.Job, plan: str) -> list[int]:
    setup = set_up(made, Plan.parse(plan), "virtual", 8)
    assert setup.blueprint is not None
    assert setup.pipeline is not None
    reader = Reader(setup.source, setup.order(), 0, lambda _: None)
    chunk = max(setup.agenda.filled(0), key=lambda chunk: chunk.samples)
    weighed = weigh_all(setup.job, setup.module, setup.blueprint, reader, chunk)
    count = setup.plan.chunks
    return needed(setup.table((count,) * (setup.pipeline.schedule.span or 8)), weighed)


def measured(made: pl.Job, plan: str) -> list[int]:
    found: list[int] = pl.train(made, plan, folder=None, max_updates=6).summary()["peak_memory"]
    return found


def case(optimizer: str, name: str, which: str) -> dict[str, Any]:
    net = NETS[which]
    endless = Plan.parse(name.rstrip(":")).endless
    made = job(optimizer, net, net.batch // 4 if endless else net.batch)
    plan = f"{name}workers=2,cuts={net.four if 'interleaved' in name else net.two},memory=100000"
    expected, found = told(made, plan), measured(made, plan)
    return {
        "case": f"{name.rstrip(':,')}, {optimizer}, {which}",
        "told_mib": [round(each / MIB, 1) for each in expected],
        "measured_mib": [round(each / MIB, 1) for each in found],
        "ratio": [round(f / e, 3) for f, e in zip(found, expected, strict=True)],
    }


def summed_up(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """By the size that was told."""
    pairs = [pair for each in cases for pair in zip(each["told_mib"], each["ratio"], strict=True)]
    found = {}
    for least, most in pairwise(SIZES):
        ratios = [ratio for size, ratio in pairs if least <= size < most]
        if ratios:
            fine = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
            found[f"{least} to {most} MiB"] = {
                "of": len(ratios), "within_10_percent": fine, "ratios": [min(ratios), max(ratios)]
            }  # fmt: skip
    return found


def capped() -> dict[str, Any]:
    """A model that is too much for one worker of CAP, and not for two."""
    made = job("Adam", NETS["wide"], 128)
    alone = measured(made, "layers:workers=1,memory=100000")
    refusal = ""
    try:
        pl.train(made, f"layers:workers=1,memory={CAP}", folder=None, max_updates=6)
    except PlanError as error:
        refusal = str(error)
    two = measured(made, f"one_f_one_b:workers=2,cuts=8,memory={CAP}")
    return {
        "cap_mib": CAP, "alone_mib": [round(each / MIB, 1) for each in alone], "refusal": refusal,
        "cut_in_two_mib": [round(each / MIB, 1) for each in two],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--quick", action="store_true", help="print the figures; write nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = []
    for which in options.nets.split(","):
        for optimizer in ("Adam",) if options.quick else OPTIMIZERS:
            for name in PLANS:
                if name.startswith("spectrain") and optimizer != "momentum":
                    continue
                cases.append(case(optimizer, name, which))
                print(cases[-1], flush=True)
    print(summed_up(cases))
    if not options.quick:
        figures = {"cases": cases, "by_size": summed_up(cases), "capped": capped()}
        write(figures, "memory.json")


if __name__ == "__main__":
    main()
