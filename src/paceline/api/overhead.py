"""Where a worker's step goes, and why several workers do not pay where they do not. Pure.

a step of one worker
| own compute | update | meeting | waiting | between |
                         ───────────────────────────     what a worker that meets nobody does not have
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.runs.time_accounting import Time, TimeAccounting
from paceline.runs.trace import Kind, Trace

DOUBTFUL = 0.15  # from this spread of rounds on nothing is said for certain
PAYS = 1.05  # times as fast as one process; less is not worth a second one


@dataclass(frozen=True)
class Step:
    """Microseconds of one worker's step, on average."""

    compute: float
    update: float
    communicate: float
    wait: float
    other: float  # between rows of the trace: taking a batch, Python, a snapshot

    @property
    def whole(self) -> float:
        return self.compute + self.update + self.communicate + self.wait + self.other


def step(trace: Trace, workers: int) -> Step | None:
    """None where nobody computed."""
    tally = TimeAccounting(workers)
    tally.add(trace.rows)
    steps = tally.sums[:, TimeAccounting.FIELDS.index("pieces")].sum()
    if not steps:
        return None
    parts = {time: tally.sums[:, TimeAccounting.FIELDS.index(time.name)].sum() for time in Time}
    known = trace.rows[trace.rows["kind"] != Kind.DEATH]
    spent = sum(
        int(mine["end"].max() - mine["start"].min())
        for worker in range(workers)
        if len(mine := known[known["worker"] == worker])
    )
    parts[Time.OTHER] = max(0.0, spent - sum(parts.values()))
    per = {time: float(part / steps / 1000) for time, part in parts.items()}
    return Step(per[Time.COMPUTE], per[Time.UPDATE], per[Time.COMMUNICATE], per[Time.WAIT], per[Time.OTHER])


@dataclass(frozen=True)
class Case:
    """What was measured of a plan, in samples per second, side by side."""

    plan: str
    workers: int
    speed: float
    ceiling: float  # of as many workers that never meet
    single: float  # the best single process
    single_name: str
    samples: int  # of a step of all workers together
    batch: int  # batch_size that gives such a step
    step: Step | None  # None: what it went into is not known
    doubt: float = 0.0  # by which share the rounds of these three differ from their medians


def verdict(case: Case) -> str | None:
    """Why the workers do not pay; None where they do."""
    if case.speed >= PAYS * case.single:
        return None
    workers, times = f"{case.workers} workers", f"{case.speed / case.single:.2f} times as fast as one process"
    if case.doubt >= DOUBTFUL and max(case.speed, case.ceiling) * (1 + case.doubt) >= PAYS * case.single:
        return (
            f"{case.plan} is {times}, but rounds differ by {case.doubt:.0%} from their median: whether it pays is not "
            "settled. Time it for longer (--seconds), on a quiet machine"
        )
    if case.ceiling < PAYS * case.single:
        alone = case.single_name
        busy = "" if alone.startswith("1 ") else f", which keeps several cores busy by itself ({alone})"
        return (
            f"{case.plan} is {times}{busy}: {workers} that never meet would be "
            f"{case.ceiling / case.single:.2f} times as fast, so no way of meeting gains more here"
        )
    cost = case.samples / case.speed - case.samples / case.ceiling
    saved = 1 / case.single - 1 / case.ceiling  # seconds a sample
    batch = case.batch * cost / saved / case.samples
    return (
        f"{case.plan} is {times}: each step of {case.samples / case.speed * 1e6:,.0f} µs has {cost * 1e6:,.0f} µs that "
        f"workers who never meet do not have{_where(case.step)}. With the same cost per step it would pay from a "
        f"batch_size of about {_rounded(batch):,} on (here {case.batch:,})"
    )


def _where(step: Step | None) -> str:
    if step is None:
        return ""
    parts = {"meeting": step.communicate, "waiting for others": step.wait, "between the two": step.other}
    name, most = max(parts.items(), key=lambda part: part[1])
    return f", most of it {name} ({most:,.0f} µs)"


def _rounded(value: float) -> int:
    """To two digits, upwards."""
    unit = int(10 ** max(0, math.floor(math.log10(max(value, 1))) - 1))
    return math.ceil(value / unit - 1e-9) * unit
