"""A figure of the evaluations that callbacks follow: whether a new value is better than the best so far."""

from __future__ import annotations

import math

from paceline.errors import UsageError, suggest
from paceline.runtime.runs.record import Evaluation

MODES = ("max", "min")


class Best:
    """The best value of a metric so far."""

    def __init__(self, metric: str, mode: str | None, min_delta: float) -> None:
        if mode is not None and mode not in MODES:
            raise UsageError(f"mode={mode!r}; {suggest(mode, MODES)}")
        if min_delta < 0:
            raise UsageError(f"min_delta={min_delta} is negative; give the least change that counts, such as 0.001")
        self.metric, self.min_delta = metric, min_delta
        #: 1 where a larger value is better, -1 where a smaller one is: by default, of whatever has "loss" in its name.
        self.sign = -1 if (mode or ("min" if "loss" in metric else "max")) == "min" else 1
        self.value = -math.inf * self.sign

    def improves(self, evaluation: Evaluation) -> bool:
        """Take the evaluation's value, and return whether it is the best so far. NaN never is."""
        if self.metric not in evaluation.metrics:
            raise UsageError(
                f"there is no figure {self.metric!r} in an evaluation of this job; "
                f"{suggest(self.metric, evaluation.metrics)}"
            )
        value = evaluation.metrics[self.metric]
        better = (
            self.sign * (value - self.value) > self.min_delta if math.isfinite(self.value) else not math.isnan(value)
        )
        if better:
            self.value = value
        return better
