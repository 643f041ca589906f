"""A prediction: the seconds of an update, divided into terms, with an interval."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from paceline.plans.methods.prediction import Terms
from paceline.plans.plan import Plan


def named(plan: Plan | str, compute: str) -> str:
    """Return a plan's name in rankings, with the way of computing where it is not PyTorch's."""
    return f"{plan}{' + fused' if compute == 'fused' else ''}"


@dataclass(frozen=True)
class Prediction:
    """What a plan would do with a job."""

    plan: Plan
    #: "autograd" or "fused".
    compute: str
    #: card, calibrated or profiled.
    level: str
    #: Samples of an update.
    batch: int
    terms: Terms
    #: Half the 90% interval, as a logarithm.
    error: float
    #: Bytes that each worker sends in an update, on average.
    bytes: float
    #: Bytes of the largest worker's own tensors.
    memory: int
    #: Mean staleness of a gradient, in updates.
    staleness: float = 0.0
    #: Why it cannot be used; empty where it can.
    ruled_out: str = ""

    @property
    def name(self) -> str:
        return named(self.plan, self.compute)

    @property
    def seconds(self) -> float:
        """The seconds of an update."""
        return self.terms.whole

    @property
    def low(self) -> float:
        """The lower end of the 90% interval of `seconds`."""
        return self.seconds * math.exp(-self.error)

    @property
    def high(self) -> float:
        return self.seconds * math.exp(self.error)

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The prediction as JSON has it."""
        return {
            "plan": str(self.plan),
            "compute": self.compute,
            "workers": self.plan.workers,
            "level": self.level,
            "seconds": self.seconds,
            "interval": [self.low, self.high],
            "terms": asdict(self.terms),
            "samples_per_second": self.samples_per_second,
            "bytes": self.bytes,
            "memory": self.memory,
            "staleness": self.staleness,
            "ruled_out": self.ruled_out,
        }
