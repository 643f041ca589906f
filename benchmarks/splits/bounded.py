"""Which plans train a net under a bound on what each worker may allocate, and how fast: real processes, real limits.

The bound is RLIMIT_DATA, set in every worker when it makes its optimizer: for parameters, gradients, optimizer state,
activations and everything temporary. Plans with `memory=` get it as well, and are refused where it is derived that they
need more. Shared memory, in which workers exchange numbers, does not count.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import rows_of
from torch import nn
from torch.nn import functional as F

import paceline
from paceline.errors import PacelineError
from paceline.runtime.runs.trace import Kind

RUNS = Path(tempfile.gettempdir()) / "paceline-splits"
MIB = 1 << 20


@dataclass(frozen=True)
class Bounded:
    """An optimizer whose worker may allocate so many bytes besides what it had without the model."""

    make: Callable[..., torch.optim.Optimizer]
    bound: int

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        mine = list(parameters)
        if multiprocessing.parent_process() is not None:
            held = sum(p.numel() * p.element_size() for p in mine)
            limit = _mapped() - held + self.bound
            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
        return self.make(mine)


def _mapped() -> int:
    """Return the bytes of private memory that this process has mapped, as RLIMIT_DATA counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData"))


@dataclass(frozen=True)
class Case:
    """A net that does not fit one worker."""

    what: str
    net: Callable[[], nn.Module]
    features: int
    classes: int
    batch: int
    optimizer: Callable[..., torch.optim.Optimizer]
    bound: int  # MiB
    plans: tuple[str, ...]


def deep() -> nn.Module:
    """Eight layers of 1024 between narrow ends."""
    blocks = [part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), *blocks, nn.Linear(1024, 10))


def one_layer() -> nn.Module:
    """A pair of layers whose weights are nearly all there are."""
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 65536), nn.ReLU(), nn.Linear(65536, 10))


def wide_batch() -> nn.Module:
    """Layers of which neither weights nor activations are small."""
    parts = [part for _ in range(3) for part in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), *parts, nn.Linear(2048, 10))


ADAM, MOMENTUM = partial(torch.optim.Adam, lr=1e-4), partial(torch.optim.SGD, lr=0.01, momentum=0.9)
PIPELINES = ("layers:workers=2", "gpipe:workers=2", "one_f_one_b:workers=2,micro_batches=8")
CASES = {
    "zero": Case(
        "state: eight layers of 1024, Adam, batch 1024", deep, 64, 10, 1024, ADAM, 112,
        ("sequential", "ring:workers=2", *PIPELINES, "tensor:workers=2", "zero:workers=2,stage=1",
         "zero:workers=2,stage=2", "zero:workers=2"),
    ),
    "tensor": Case(
        "a layer of 512 x 65536, momentum, batch 128", one_layer, 64, 10, 128, MOMENTUM, 360,
        ("sequential", "ring:workers=2", *PIPELINES, "zero:workers=2", "one_weird_trick:workers=2", "tensor:workers=2"),
    ),
    "cannon": Case(
        "three layers of 2048, momentum, batch 4096", wide_batch, 64, 10, 4096, MOMENTUM, 160,
        ("ring:workers=4", "layers:workers=4", "one_f_one_b:workers=4,micro_batches=8", "zero:workers=4",
         "tensor:workers=4", "cannon:workers=4"),
    ),
}  # fmt: skip


def tried(case: Case, plan: str, bound: int, updates: int = 8) -> dict[str, Any]:
    """Return the samples per second of a plan under the bound, or what became of it."""
    generator = torch.Generator().manual_seed(0)
    data = (
        torch.randn(2 * case.batch, case.features, generator=generator),
        torch.randint(case.classes, (2 * case.batch,), generator=generator),
    )
    job = paceline.Job(
        case.net, data, F.cross_entropy, optimizer=Bounded(case.optimizer, bound * MIB), batch_size=case.batch,
        epochs=updates, device="cpu",
    )  # fmt: skip
    bounded = plan if plan.startswith(("sequential", "ring")) else f"{plan},memory={bound}"
    try:
        run = paceline.train(job, bounded, folder=RUNS, max_updates=updates)
    except PacelineError as error:
        if "allocate" not in str(error) and "would take" not in str(error):
            raise
        return {"fits": False, "because": str(error).splitlines()[0][:160]}
    rows = run.trace.of_kind(Kind.APPLY)
    ends = sorted(int(end) for end in rows["end"][rows["worker"] == 0])
    per_update = len(ends) // updates
    seconds = (ends[-1] - ends[2 * per_update - 1]) / 1e9
    peak = [round(each / MIB) for each in run.summary()["peak_memory"]]
    return {"fits": True, "samples/s": round((updates - 2) * case.batch / seconds), "peak": peak}


def measure_bounded() -> dict[str, Any]:
    keys = [[name, plan] for name, case in CASES.items() for plan in case.plans]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = rows_of("rows_bounded.jsonl", keys, lambda key: tried(CASES[key[0]], key[1], CASES[key[0]].bound))
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        weights = 4 * sum(p.numel() for p in case.net().parameters())
        found[name] = {"net": case.what, "bound": case.bound, "weights": round(weights / MIB), "plans": {}}
    for row in rows:
        name, plan = row.pop("key")
        found[name]["plans"][plan] = row
        print(name, plan, row)
    return found
