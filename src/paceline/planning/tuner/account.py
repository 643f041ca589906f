"""Where the time of a tuning went, and what it says about more or fewer workers.

Of W workers that ran for `wall` seconds, `inside` seconds were trials' functions; the rest was overhead: deciding,
sending, waiting for the last trial. A single worker in the tuning process itself, at the same speed of each trial,
takes `inside` seconds. So W workers pay where

    start + (inside + outside) / W  <  inside.

Trials that run side by side slow each other down, so that `inside` is more than one worker would really need: the
speed-up is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Account:
    """The account of a tuning, in seconds."""

    wall: float
    inside: float
    workers: int
    legs: int
    start: float  # until the workers could begin

    @property
    def outside(self) -> float:
        """Seconds of the workers that were spent outside of trials."""
        return max(0.0, self.wall * self.workers - self.inside)

    @property
    def overhead_per_leg(self) -> float:
        return self.outside / max(1, self.legs)

    @property
    def speedup(self) -> float:
        """How much faster than one worker without any overhead, at the speed that trials had here."""
        return self.inside / max(self.wall + self.start, 1e-9)

    @property
    def break_even(self) -> int | None:
        """The least number of workers that is faster than one; None if there is none."""
        saving = self.inside - self.start
        return math.floor((self.inside + self.outside) / saving) + 1 if saving > 0 else None

    def as_dict(self) -> dict[str, float | int | None]:
        return {
            "seconds": self.wall,
            "inside": self.inside,
            "outside": self.outside,
            "start": self.start,
            "workers": self.workers,
            "legs": self.legs,
            "overhead_per_leg": self.overhead_per_leg,
            "speedup": self.speedup,
            "break_even": self.break_even,
        }

    def sentences(self) -> list[str]:
        """Return the account in words."""
        if not self.legs:
            return ["nothing was left to train"]
        share = self.inside / max(self.wall * self.workers, 1e-9)
        lines = [
            f"{share:.0%} of the workers' time was training; {1e3 * self.overhead_per_leg:.2f} ms for each "
            f"part of a trial were not, and {self.start:.1f} s went by before the workers could begin"
        ]
        if self.workers > 1 and self.speedup < 1:
            lines.append(
                f"this parallel search was slower than a sequential one: {1 / self.speedup:.2f} times its time; take "
                "longer trials, or --executor here"
            )
        elif self.workers > 1:
            lines.append(
                f"at most {self.speedup:.2f} times as fast as one worker; break-even is at {self.break_even} workers"
            )
        return lines
