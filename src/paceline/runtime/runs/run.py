"""A finished training, as `train` returns it; runs and comparisons as rows of text for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.runtime.runs.comparison import ComparisonRecord, Range, Row
from paceline.runtime.runs.schema import to_dict
from paceline.text_table import Listed, TextList, TextTable
from paceline.training.jobs.metrics import RESERVED

if TYPE_CHECKING:
    from torch import nn

    from paceline.runtime.runs.record import RunRecord
    from paceline.runtime.runs.trace import Trace
    from paceline.training.jobs.job import Job


@dataclass
class Run(Listed):
    """One finished training.

    Attributes:
        path: The run's folder; None if nothing was written.
        trace: What happened, a row per event.
        record: What run.json holds.
        model: The trained model.
        job: The job.
    """

    path: Path | None
    trace: Trace
    record: RunRecord
    model: nn.Module
    job: Job

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as `paceline train --json` prints them."""
        document: dict[str, Any] = to_dict(self.record.summary)
        return document

    @property
    def history(self) -> list[dict[str, Any]]:
        """The evaluations in order: updates, seconds and a value per metric."""
        return [to_dict(evaluation) for evaluation in self.record.history]

    def __repr__(self) -> str:
        return f"Run({self.record.plan!r} of {self.job.name!r}, path={self.path and str(self.path)!r})"

    def _listed(self) -> TextList:
        return TextList(f"Run of {self.job.name}", summary_lines(self.summary()))


# Runs and comparisons as rows of text, for the terminal and for notebooks.

METRICS = 4  # of the user's own that a table has room for; --json and the page have all


class _Column(NamedTuple):
    """A column of the table, with a cell per plan."""

    head: str
    cells: list[str]


def comparison_table(record: ComparisonRecord) -> TextTable:
    """Return a comparison's table, a row per plan, without the columns that say nothing."""
    columns = [column for column in _columns(record) if not {*column.cells} <= {"-", "0.0"}]
    rows = [(row.short, *(column.cells[at] for column in columns)) for at, row in enumerate(record.plans)]
    rows += [(plan.short, "failed", *["-"] * (len(columns) - 1)) for plan in record.failed]
    title = f"{record.job}: plans side by side"
    return TextTable(title, ("plan", *(column.head for column in columns)), tuple(rows))


def _columns(record: ComparisonRecord) -> list[_Column]:
    rows, ranges = record.plans, bool(record.disagreement)
    level = "" if record.common_accuracy is None else f"{record.common_accuracy:.1%}"
    custom_names = _own_metrics(rows)[:METRICS]
    return [
        _Column("samples/s", [f"{row.samples_per_second:,.0f}" for row in rows]),
        _Column("speed-up", [_ratio(row.speedup, row.speedup_interval, 1, ranges) for row in rows]),
        _Column("of ceiling", [_ratio(row.ceiling_share, row.ceiling_share_interval, 100, ranges) for row in rows]),
        _Column("accuracy", [_accuracy(row) for row in rows]),
        *(_Column(name, [_number(row.metrics.get(name), "{:.3f}") for row in rows]) for name in custom_names),
        _Column(f"holds {level}", [_number(row.seconds_to_common_accuracy, "{:.2f} s") for row in rows]),
        _Column("stale", [f"{row.staleness:.1f}" for row in rows]),
        _Column("waits", [_number(row.wait_fraction, "{:.0%}") for row in rows]),
    ]


def _own_metrics(rows: Sequence[Row]) -> list[str]:
    """Names of the user's own metrics, and the test loss of a job that has no accuracy."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    hidden = {"test_accuracy"} | ({"test_loss"} if "test_accuracy" in names else set())
    return [name for name in names if name not in hidden]


def _ratio(value: float | None, interval: Range | None, scale: int, ranges: bool) -> str:
    """A figure with half its interval, or where rounds disagree the interval alone; in percent at a scale of 100."""
    if value is None:
        return "-"
    digits, unit = (0, "%") if scale == 100 else (2, "")
    low, high = interval or (value, value)
    if low == high:
        return f"{scale * value:.{digits}f}{unit}"
    if ranges:
        return f"{scale * low:.{digits}f}-{scale * high:.{digits}f}{unit}"
    return f"{scale * value:.{digits}f}{unit} ±{(high - low) / 2 / value:.0%}"


def _accuracy(row: Row) -> str:
    if row.test_accuracy is None or row.test_accuracy_interval is None:
        return _number(row.test_accuracy, "{:.1%}")
    low, high = row.test_accuracy_interval
    return f"{row.test_accuracy:.1%} ±{(high - low) * 50:.1f}"


def summary_lines(summary: dict[str, Any]) -> dict[str, str]:
    """Return what a finished run's summary says, one line per subject."""
    stale, workers = summary["staleness"], summary["workers"]
    updates, rate = summary["updates"], summary["samples_per_second"]
    lines = {
        "plan": f"{summary['plan']} on {workers} worker{'s' * (workers > 1)}, engine {summary['engine']}",
        "speed": f"{rate:,.0f} samples/s: {updates} updates in {summary['seconds']:.2f} s",
        "train loss": _number(summary["train_loss"], "{:.4f}"),
        "test": tested(summary),
        "staleness": f"mean {stale['mean']:.2f}, 95% {stale['p95']:.0f}, max {stale['max']}",
        "waiting": _waiting(summary),
        "parameters": summary["parameters_sha256"][:16],
        "run": str(summary["run"]),
    }
    if summary["compute"] == "fused":
        lines["compute"] = "fused: generated code"
    if summary["stragglers"]:
        slow = (f"worker {w} computes at {of:.0%} of the others' speed" for w, of in summary["stragglers"].items())
        advised = [f"sizes={summary['advised_sizes']} divides batches by speed"] if summary["advised_sizes"] else []
        lines["straggler"] = "; ".join([*slow, *advised])
    if summary["idle"]:
        names = ", ".join(map(str, summary["idle"]))
        idle = f"worker{'s' * (len(summary['idle']) > 1)} {names}: the others had done everything before"
        lines["idle"] = f"{idle}; a longer training uses all"
    if summary["not_finite"]:
        lines["not finite"] = f"the loss of {summary['not_finite']} gradients"
    if summary["deaths"]:
        lines["died"] = f"workers {summary['deaths']}; the others finished the training"
    return lines


def tested(summary: dict[str, Any]) -> str:
    """The figures of the last evaluation: accuracy and loss, then user-defined metrics."""
    custom_names = [name for name in summary if name not in RESERVED]
    figures = [f"accuracy {_number(summary.get('test_accuracy'), '{:.2%}')}"] if "test_accuracy" in summary else []
    figures += [f"loss {_number(summary.get('test_loss'), '{:.4f}')}"] if "test_loss" in summary else []
    return (
        ", ".join([*figures, *(f"{name} {_number(summary[name], '{:.4f}')}" for name in custom_names)])
        or "no test data"
    )


def _waiting(summary: dict[str, Any]) -> str:
    if summary["wait_fraction"] is None:
        return "not measured: PyTorch's DDP communicates while it computes"
    return f"{summary['wait_fraction']:.1%} of the workers' time; {_bytes(summary['bytes_sent'])} sent"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
