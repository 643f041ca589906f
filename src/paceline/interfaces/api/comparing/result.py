"""What `compare` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.plans.plan import Plan
from paceline.runtime.runs.comparison import ComparisonAnswer, ComparisonRecord, FailedPlan, Row
from paceline.runtime.runs.run import Run, comparison_table
from paceline.runtime.runs.schema import to_dict

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
