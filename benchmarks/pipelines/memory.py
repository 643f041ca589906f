"""Peak memory of each worker, measured, beside the figure of its table; and a model that fits only when it is cut.

    python benchmarks/pipelines/memory.py

Measured is the most resident memory of a worker process while it trains, less what it had before it got its stages,
and less shared memory (data, messages). A process needs some more than its tensors: that of a tiny model is told
apart.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.compute.weighing import weigh_all
from paceline.core.schedules.memory import peaks
from paceline.data.source import Reader
from paceline.engines.setup import set_up
from paceline.errors import PlanError
from paceline.plan import Plan

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import write

MIB = 1 << 20
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.001),
}
PLANS = ("gpipe:", "gpipe:recompute=all,", "one_f_one_b:", "zero_bubble:", "interleaved:", "pipedream:", "spectrain:")
SIZES = {"wide layers": (2048, 128), "many samples": (512, 4096)}  # width; samples of a batch
CAP = 450  # MiB


def net(width: int) -> nn.Module:
    pairs = [part for _ in range(8) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*pairs, nn.Linear(width, 10))


def job(optimizer: str, width: int, batch: int) -> pl.Job:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * batch, width, generator=generator)
    y = torch.randint(10, (2 * batch,), generator=generator)
    return pl.Job(
        model=partial(net, width), data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=OPTIMIZERS[optimizer],
        batch_size=batch, epochs=5,
    )  # fmt: skip


def told(made: pl.Job, plan: str) -> list[int]:
    setup = set_up(made, Plan.parse(plan), "virtual", 8)
    assert setup.blueprint is not None
    assert setup.plan.schedule is not None
    reader = Reader(setup.source, setup.order(), 0, lambda _: None)
    chunk = max(setup.agenda.filled(0), key=lambda chunk: chunk.samples)
    weighed = weigh_all(setup.job, setup.module, setup.blueprint, reader, chunk)
    count = setup.plan.chunks
    return peaks(setup.table((count,) * (setup.plan.schedule.span or 8)), weighed)


def measured(made: pl.Job, plan: str) -> list[int]:
    found: list[int] = pl.train(made, plan, folder=None, updates=6).summary()["peak_memory"]
    return found


def case(optimizer: str, name: str, size: str, besides: list[int]) -> dict[str, Any]:
    width, batch = SIZES[size]
    endless = Plan.parse(name.rstrip(":")).endless
    made = job(optimizer, width, batch // 4 if endless else batch)
    cuts = "4+8+12" if "interleaved" in name else "8"
    plan = f"{name}workers=2,cuts={cuts},memory=100000"
    expected, found = told(made, plan), measured(made, plan)
    return {
        "case": f"{name.rstrip(':,')}, {optimizer}, {size}",
        "told_mib": [round(each / MIB, 1) for each in expected],
        "measured_mib": [round(each / MIB, 1) for each in found],
        "ratio": [round((f - b) / e, 3) for f, b, e in zip(found, besides, expected, strict=True)],
    }


def capped() -> dict[str, Any]:
    """A model that is too much for one worker of CAP, and not for two."""
    made = job("Adam", 2048, 128)
    alone = measured(made, "layers:workers=1,memory=100000")
    refusal = ""
    try:
        pl.train(made, f"layers:workers=1,memory={CAP}", folder=None, updates=6)
    except PlanError as error:
        refusal = str(error)
    two = measured(made, f"one_f_one_b:workers=2,cuts=8,memory={CAP}")
    return {
        "cap_mib": CAP, "alone_mib": [round(each / MIB, 1) for each in alone], "refusal": refusal,
        "cut_in_two_mib": [round(each / MIB, 1) for each in two],
    }  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    besides = measured(job("SGD", 16, 64), "gpipe:workers=2,cuts=8,memory=100000")
    print("besides tensors", besides, flush=True)
    cases = []
    for size in SIZES:
        for optimizer in OPTIMIZERS:
            for name in PLANS:
                if name.startswith("spectrain") and optimizer != "momentum":
                    continue
                cases.append(case(optimizer, name, size, besides))
                print(cases[-1], flush=True)
    ratios = [ratio for each in cases for ratio in each["ratio"]]
    figures = {
        "besides_tensors_mib": [round(each / MIB, 1) for each in besides], "cases": cases,
        "ratios": [min(ratios), max(ratios)], "within_10_percent": sum(abs(r - 1) <= 0.1 for r in ratios),
        "of": len(ratios), "capped": capped(),
    }  # fmt: skip
    write(Path(__file__).parent, figures, "memory.json")


if __name__ == "__main__":
    main()
