"""What `compare` returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.plans.plan import Plan
from paceline.runtime.runs.comparison import ComparisonAnswer, ComparisonRecord, FailedPlan, Row, StepTimes
from paceline.runtime.runs.run import Run, comparison_table
from paceline.runtime.runs.schema import to_dict
from paceline.runtime.runs.time_accounting import Time, TimeAccounting
from paceline.runtime.runs.trace import Kind, Trace
from paceline.runtime.runs.verdict import PAYS, SETTLED

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass
class Comparison:
    """The table of a comparison, what it comes to, and the runs it came from."""

    table: ComparisonRecord  # as comparison.json holds it
    runs: list[Run] = field(repr=False, default_factory=list)

    def __repr__(self) -> str:
        plans = ", ".join(row.short for row in self.table.plans)
        return f"Comparison({self.job!r}: {'; '.join([plans, *self._answer()])})"

    def __str__(self) -> str:
        return "\n".join([*filter(None, [self.table.disagreement]), str(comparison_table(self.table)), *self._below()])

    def _repr_html_(self) -> str:
        return comparison_table(self.table).html(self._below())

    def _below(self) -> list[str]:
        """What stands below the table: plans that failed, and why; what it comes to."""
        return [*(plan.sentence for plan in self.failed), *self._answer()]

    def _answer(self) -> list[str]:
        return [self.table.answer.sentence] if self.table.answer else []

    @property
    def job(self) -> str:
        """The job's name."""
        return self.table.job

    @property
    def rows(self) -> tuple[Row, ...]:
        """A line of the table per plan."""
        return self.table.plans

    @property
    def failed(self) -> tuple[FailedPlan, ...]:
        """Plans that were refused or failed, with the reason; they have no row."""
        return self.table.failed

    @property
    def best_single(self) -> str:
        """The best single process, such as `2 threads`."""
        return self.table.best_single

    @property
    def best_single_samples_per_second(self) -> float:
        """Its speed."""
        return self.table.best_single_samples_per_second

    @property
    def common_accuracy(self) -> float | None:
        """The best test accuracy that every plan held to its end."""
        return self.table.common_accuracy

    @property
    def rounds(self) -> int:
        """How many rounds were timed."""
        return self.table.rounds

    @property
    def notes(self) -> list[str]:
        """What makes the figures doubtful."""
        return list(self.table.notes)

    @property
    def answer(self) -> ComparisonAnswer:
        """The plan to use, one process, or that it is not settled; `answer.sentence` says which and why."""
        assert self.table.answer is not None
        return self.table.answer

    @property
    def best(self) -> str | None:
        """The plan to use, as `train` takes it; None where the figures do not settle it."""
        plan = self.answer.plan
        return None if plan is None else str(Plan.parse(plan, self.answer.workers))

    def to_pandas(self) -> DataFrame:
        """The table as a DataFrame with a row per plan; needs pandas."""
        from pandas import DataFrame

        return DataFrame([to_dict(row) for row in self.rows]).set_index("plan")

    @property
    def path(self) -> Path | None:
        """The folder; None: nothing was written."""
        return Path(self.table.path) if self.table.path else None

    @property
    def page(self) -> Path | None:
        """The page in the folder."""
        return Path(self.table.page) if self.table.page else None

    def as_dict(self) -> dict[str, Any]:
        """The table as `paceline compare --json` prints it."""
        fields: dict[str, Any] = to_dict(self.table)
        return {key: value for key, value in fields.items() if key not in ("machine", "schema_version")}


# --- Where a worker's step goes, and why several workers do not pay where they do not. Pure ---------------------------
# a step of one worker
# | own compute | update | collectives | waiting | between |
#                          ───────────────────────────────     what a worker that never communicates does not have


def step(trace: Trace, workers: int) -> StepTimes | None:
    """Average the time of all workers over their steps; None if no gradient was computed."""
    accounting = TimeAccounting(workers)
    accounting.add(trace.rows)
    steps = accounting.total("pieces")
    if not steps:
        return None
    parts = {time: accounting.total(time.name) for time in Time}
    rows = trace.rows[trace.rows["kind"] != Kind.DEATH]
    each = (rows[rows["worker"] == worker] for worker in range(workers))
    spent = sum(int(mine["end"].max() - mine["start"].min()) for mine in each if len(mine))
    parts[Time.OTHER] = max(0.0, spent - sum(parts.values()))
    per = {time: float(part / steps / 1000) for time, part in parts.items()}
    return StepTimes(per[Time.COMPUTE], per[Time.UPDATE], per[Time.COMMUNICATE], per[Time.WAIT], per[Time.OTHER])


def unmeasured(trace: Trace, workers: int) -> float | None:
    """Average what a step takes where the trace does not divide it, as inside PyTorch's DDP, in microseconds."""
    mean_step = step(trace, workers)
    return mean_step.whole if mean_step else None


@dataclass(frozen=True)
class Case:
    """What was measured of a plan, in samples per second, side by side."""

    plan: str
    workers: int
    speed: float
    ceiling: float  # of as many workers that never communicate
    single: float  # the best single process
    single_name: str
    samples: int  # of one step of all workers together
    batch: int  # batch_size that gives such a step
    step: StepTimes | None  # None: the trace does not show it
    doubt: float = 0.0  # half the interval of these figures, as a share of them, at most


def verdict(case: Case) -> str | None:
    """Explain why the workers do not pay; None where they do."""
    if case.speed >= PAYS * case.single:
        return None
    times = f"{case.speed / case.single:.2f} times as fast as one process"
    if case.doubt >= SETTLED and max(case.speed, case.ceiling) * (1 + case.doubt) >= PAYS * case.single:
        return (
            f"{case.plan} is {times}, but rounds differ by {case.doubt:.0%} from their median, so it is not clear "
            "whether it is worth it. Measure longer (--seconds), on a quiet machine"
        )
    if case.ceiling < PAYS * case.single:
        return _no_plan_pays(case, times)
    return _costs_too_much(case, times)


def _no_plan_pays(case: Case, times: str) -> str:
    alone = case.single_name
    busy = "" if alone.startswith("1 ") else f", which keeps several cores busy on its own ({alone})"
    return (
        f"{case.plan} is {times}{busy}: {case.workers} workers that never communicate would be "
        f"{case.ceiling / case.single:.2f} times as fast, so no plan gains more here"
    )


def _costs_too_much(case: Case, times: str) -> str:
    """Compute the batch size from which on the same cost per step would be less than what the workers gain."""
    cost = case.samples / case.speed - case.samples / case.ceiling  # seconds a step
    saved = 1 / case.single - 1 / case.ceiling  # seconds a sample
    batch = case.batch * cost / saved / case.samples
    return (
        f"{case.plan} is {times}: each step of {case.samples / case.speed * 1e6:,.0f} µs has {cost * 1e6:,.0f} µs that "
        f"workers that never communicate do not have{_largest(case.step)}. With the same cost per step it would be "
        f"faster from a batch_size of about {_rounded(batch):,} (here {case.batch:,})"
    )


def _largest(step: StepTimes | None) -> str:
    if step is None:
        return ""
    parts = {"collectives": step.communicate, "waiting for others": step.wait, "between the two": step.other}
    name, most = max(parts.items(), key=lambda part: part[1])
    return f", most of it {name} ({most:,.0f} µs)"


def _rounded(value: float) -> int:
    """Round up to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(max(value, 1))) - 1))
    return math.ceil(value / unit - 1e-9) * unit
