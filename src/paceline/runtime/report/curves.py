"""Curves over a run (loss, accuracy, staleness), and their reduction to as many points as a chart needs. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.trace import Kind, Trace, weighted_losses

Floats = npt.NDArray[np.float64]
AXES = ("seconds", "updates", "samples")
#: What workers measure from time to time.
MEASURED = (Kind.LEARNING_RATE, Kind.GRADIENT_NORM, Kind.MEMORY)


class Curve(NamedTuple):
    """Values over all three axes, in order of time."""

    seconds: Floats
    updates: Floats
    samples: Floats
    values: Floats

    def over(self, axis: str) -> Floats:
        """The positions along an axis of AXES."""
        values: Floats = getattr(self, axis)
        return values

    def __bool__(self) -> bool:
        return len(self.values) > 0


class Envelope(NamedTuple):
    """A curve in few points: the mean, minimum and maximum of each bin."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


NOTHING = Curve(*(np.zeros(0) for _ in Curve._fields))


def loss_curve(reading: Reading) -> Curve:
    """The loss of each batch at the time its last piece was computed. Losses that are not finite are left out."""
    rows = reading.trace.of_kind(Kind.COMPUTE)
    rows = rows[(rows["samples"] > 0) & (weighted_losses(rows)[1] > 0)]
    if not len(rows):
        return NOTHING
    which, place = np.unique(rows["update"], return_inverse=True)
    samples = np.bincount(place, rows["samples"], len(which))
    sums, weights = (np.bincount(place, each, len(which)) for each in weighted_losses(rows))
    losses = sums / weights
    ends = np.zeros(len(which))
    np.maximum.at(ends, place, rows["end"])
    order = np.argsort(ends, kind="stable")
    # A batch that several workers share, as under backup, is several pieces, but one update.
    summary = reading.record.summary
    total = (summary.updates if summary else 0) or len(which)
    updates = np.arange(1, len(which) + 1, dtype=np.float64) * (total / len(which))
    return Curve(ends[order] / 1e9, updates, np.cumsum(samples[order]), losses[order])


def evaluation_curve(reading: Reading, what: str) -> Curve:
    """A figure of the evaluations on test data, such as test_accuracy."""
    points = [e for e in reading.record.history if math.isfinite(e.metrics.get(what, math.nan))]
    if not points:
        return NOTHING
    total = reading.record.summary
    each = total.samples / total.updates if total and total.updates else float(reading.record.job.batch_size or 1)
    updates = np.array([float(e.updates) for e in points])
    return Curve(
        np.array([float(e.seconds) for e in points]),
        updates,
        updates * each,
        np.array([e.metrics[what] for e in points]),
    )


def measured_curve(reading: Reading, kind: Kind, worker: int | None = None) -> Curve:
    """A figure that workers measure from time to time, of one worker or of all together."""
    rows = reading.trace.of_kind(kind)
    rows = rows[np.isfinite(rows["value"]) & ((rows["worker"] == worker) | (worker is None))]
    if not len(rows):
        return NOTHING
    updates = rows["update"] + 1.0
    return Curve(rows["end"] / 1e9, updates, updates * (reading.record.job.batch_size or 1), rows["value"].copy())


def every_curve(reading: Reading) -> dict[str, Curve]:
    """All curves of a run that files for other programs hold, by name; empty ones are left out."""
    curves = {"train_loss": loss_curve(reading)}
    curves |= {name: evaluation_curve(reading, name) for name in metrics(reading)}
    return curves | {kind.name.lower(): curve for kind in MEASURED if (curve := measured_curve(reading, kind))}


def metrics(reading: Reading) -> list[str]:
    """List what was evaluated, accuracy first."""
    names = {name for evaluation in reading.record.history for name in evaluation.metrics}
    return sorted(names, key=lambda name: (name != "test_accuracy", name))


def staleness_curve(trace: Trace) -> tuple[Floats, Floats]:
    """(seconds, staleness) of every push that created a version."""
    rows = trace.of_kind(Kind.APPLY)
    rows = rows[rows["version"] > 0]
    return rows["end"] / 1e9, (rows["version"] - 1 - rows["base"]).astype(float)


def histogram(values: Floats, most: int = 24) -> list[tuple[int, int, int]]:
    """(from, to, count) for non-negative whole numbers, in at most so many bins of equal width."""
    if not len(values):
        return []
    step = max(1, -(-(int(values.max()) + 1) // most))
    counts = np.bincount(np.maximum(values, 0).astype(np.int64) // step)
    return [(n * step, n * step + step - 1, int(count)) for n, count in enumerate(counts)]


def envelope(x: Floats, y: Floats, bins: int) -> Envelope:
    """Reduce a curve to equal bins of x; unchanged where it has no more points than bins."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    if len(x) <= bins:
        return Envelope(x, y, y, y)
    low, high = float(x[0]), float(x[-1])
    place = np.minimum(((x - low) / max(high - low, 1e-12) * bins).astype(np.int64), bins - 1)
    first = np.concatenate(([0], np.flatnonzero(np.diff(place)) + 1))
    counts = np.diff(np.concatenate((first, [len(x)])))
    return Envelope(
        np.add.reduceat(x, first) / counts,
        np.add.reduceat(y, first) / counts,
        np.minimum.reduceat(y, first),
        np.maximum.reduceat(y, first),
    )


def as_dict(curve: Curve) -> dict[str, Any]:
    """The curve as lists, for JSON."""
    return {name: getattr(curve, name).tolist() for name in Curve._fields}
