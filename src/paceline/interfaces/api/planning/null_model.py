"""The null model of TensorFlow's paper: training steps that only pull parameters, touch them and push as much back.

    scalar    one number: what a step costs when nothing is sent
    dense     a vector, all of which is pulled and pushed in every step
    sparse    a table of which a step reads and changes `ROWS` random rows

What is measured is the exchange of the real engines, without a model in the way (Abadi et al., "TensorFlow: a system
for large-scale machine learning", OSDI 2016, section 6.2).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import PacelineError
from paceline.interfaces.api.lines import Say, silent
from paceline.interfaces.api.planning.calibration_jobs import vector_job
from paceline.interfaces.api.planning.measuring import Measured, measure_for
from paceline.plans.plan import Plan
from paceline.training.jobs.job import Job

ROWS, WIDTH = 32, 256  # rows that a step reads, and floats of each
FLOAT = 4
MB = 1_000_000
#: Bytes of the parameters of each case.
CASES = {
    "scalar": FLOAT,
    "dense 1 MB": MB,
    "dense 100 MB": 100 * MB,
    "sparse 16 MB": 16 * MB,
    "sparse 256 MB": 256 * MB,
}
PARTS = ("scalar", "dense", "sparse")
#: The plans that are measured: a server and no waiting, the same server in lock step, an all-reduce.
PLANS = {"asynchronous": "downpour", "server": "backup:backups=0", "all-reduce": "ring"}
LOCK_STEP = "ssp:bound=0"  # a server that takes sparse gradients, where no worker is ahead of another
ROUNDS = 3
GUESS = 2e-3  # seconds of a step before the first is measured
#: Median milliseconds of a null step with 1 and with 100 workers, on 16 parameter servers; synchronous.
PUBLISHED = {
    "scalar": (1.8, 8.8),
    "dense 100 MB": (147.0, 613.0),
    "dense 1 GB": (1010.0, 7160.0),
    "sparse": (5.0, 20.0),
}


class SparseTable(nn.Module):
    """A table whose gradient is sparse."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.zeros(rows, WIDTH), freeze=False, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.table(x)
        return result


@dataclass(frozen=True)
class NullStep:
    """A plan with a number of workers."""

    case: str
    mode: str
    plan: str
    workers: int
    #: Seconds of one worker's step: the median of the rounds, the least and the most.
    step: float
    low: float
    high: float
    #: Steps of all workers together in a second; a synchronous step counts once for each worker.
    steps_per_second: float
    #: Bytes that a worker sends in a step.
    bytes: float


@dataclass(frozen=True)
class RefusedCase:
    """A case that a plan cannot train, and why."""

    case: str
    mode: str
    workers: int
    why: str


@dataclass(frozen=True)
class NullModel:
    """What `paceline bench null` measured."""

    cores: int
    steps: tuple[NullStep, ...]
    refused: tuple[RefusedCase, ...]

    def as_dict(self) -> dict[str, Any]:
        """The figures as `--json` prints them."""
        return {**asdict(self), "published_ms": {name: list(row) for name, row in PUBLISHED.items()}}


def null_job(case: str) -> Job:
    """Make the job of a case."""
    size = CASES[case]
    if not case.startswith("sparse"):
        return vector_job(size // FLOAT)
    rows = size // WIDTH // FLOAT
    numbers = torch.randint(rows, (4096, 1), generator=torch.Generator().manual_seed(1))
    return Job(
        partial(SparseTable, rows),
        numbers,
        step=_touch,
        optimizer=partial(torch.optim.SGD, lr=1e-6),
        batch_size=ROWS,
        epochs=10**6,
        name=case,
        on_nan="ignore",
        device="cpu",
    )


def _touch(module: nn.Module, batch: Any) -> Tensor:
    result: Tensor = module(batch[0]).mean()
    return result


def bench(
    parts: Sequence[str] = PARTS,
    workers: Sequence[int] = (1, 2, 4, 8),
    seconds: float = 1.0,
    say: Say = silent,
    cores: int = 1,
) -> NullModel:
    """Measure null steps of these parts; plans alternate in `ROUNDS` rounds of so many seconds in all."""
    steps, refused = list[NullStep](), list[RefusedCase]()
    for case in (name for name in CASES if name.split()[0] in parts):
        job = null_job(case)
        for count in workers:
            say(f"{case}, {count} worker{'s' * (count > 1)} ...")
            plans = {mode: _plan(mode, case, count) for mode in PLANS}
            runs: dict[str, list[Measured]] = {mode: [] for mode in plans}
            for number in range(ROUNDS):
                for mode in list(plans)[:: 1 if number % 2 == 0 else -1]:
                    if any((r.case, r.mode, r.workers) == (case, mode, count) for r in refused):
                        continue
                    guess = runs[mode][-1].seconds if runs[mode] else GUESS
                    try:
                        runs[mode].append(measure_for(job, plans[mode], seconds / ROUNDS, guess, bool(runs[mode])))
                    except PacelineError as error:
                        refused.append(RefusedCase(case, mode, count, str(error).splitlines()[0]))
            steps += [_step(case, mode, plans[mode], each) for mode, each in runs.items() if each]
    return NullModel(cores, tuple(steps), tuple(refused))


def _plan(mode: str, case: str, workers: int) -> Plan:
    name = LOCK_STEP if mode == "server" and case.startswith("sparse") else PLANS[mode]
    if workers == 1 and mode == "all-reduce":
        name = "sequential"
    return Plan.parse(name, workers)


def _step(case: str, mode: str, plan: Plan, runs: Sequence[Measured]) -> NullStep:
    """Sum up the rounds. An update is a step of every worker where they keep step, and of one where they do not."""
    each = 1 if plan.traits.synchronous or plan.traits.gathers else plan.workers
    steps = sorted(run.seconds * each for run in runs)
    middle = statistics.median(steps)
    sent = statistics.median(run.bytes for run in runs) * each
    return NullStep(case, mode, str(plan), plan.workers, middle, steps[0], steps[-1], plan.workers / middle, sent)
