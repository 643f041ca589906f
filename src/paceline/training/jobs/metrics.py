"""The metrics of a job: what `metrics=` may be, and the numbers that a metric's value stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import RunFailed

#: Names of the figures of a run and of an evaluation, which the metrics lie beside.
RESERVED = frozenset(
    {
        "plan",
        "engine",
        "workers",
        "updates",
        "samples",
        "seconds",
        "samples_per_second",
        "compute",
        "epochs",
        "train_loss",
        "staleness",
        "not_finite",
        "bytes_sent",
        "wait_fraction",
        "stragglers",
        "advised_sizes",
        "idle",
        "deaths",
        "peak_memory",
        "core_wait_fraction",
        "metrics",
        "run",
        "parameters_sha256",
        "test_loss",
        "test_accuracy",
    }
)
MOST = 100  # numbers of one metric; a confusion matrix of many classes is no figure of a run


def goes_by_batches(metric: Any) -> bool:
    """Return whether a metric is an object that is updated batch by batch, not a function of all outputs."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def by_name(metrics: Any) -> Any:
    """Return metrics as a dictionary: a mapping of any kind as it is, a list or one metric by their own names.

    torchmetrics' MetricCollection is a mapping. Anything else is returned unchanged, for the job to refuse.
    """
    if hasattr(metrics, "items"):
        return dict(metrics.items())
    several = list(metrics) if isinstance(metrics, list | tuple) else [metrics]
    if not all(goes_by_batches(metric) or callable(metric) for metric in several):
        return metrics
    names = [_name(metric) for metric in several]
    return dict(zip(_distinct(names), several, strict=True))


def _name(metric: Any) -> str:
    return str(getattr(metric, "__name__", None) or type(metric).__name__)


def _distinct(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once."""
    return [
        f"{name}_{names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def numbers(name: str, value: Any) -> dict[str, float]:
    """Return what a metric computed as numbers by name.

    A mapping, such as that of a collection, gives `name_key` for each of its keys; several values, as one per class,
    give `name_0`, `name_1`, ...
    """
    if isinstance(value, Mapping):
        return {key: number for part in value for key, number in numbers(f"{name}_{part}", value[part]).items()}
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(listed, list | tuple):
        if len(listed) > MOST:
            raise RunFailed(f"the metric {name!r} returned {len(listed)} numbers; {MOST} are the most that a run keeps")
        return {key: n for place, part in enumerate(listed) for key, n in numbers(f"{name}_{place}", part).items()}
    try:
        return {name: float(listed)}
    except (TypeError, ValueError) as error:
        raise RunFailed(f"the metric {name!r} returned {value!r:.60}, which is not a number") from error
