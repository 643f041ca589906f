"""How a plan's speed grows with its workers, and from where on more do not pay. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.planning.planner.choosing import PAYS, Choice


@dataclass(frozen=True)
class Scaling:
    """One plan with several numbers of workers."""

    name: str
    workers: tuple[int, ...]
    #: Over the best single process.
    speed_ups: tuple[float, ...]

    @property
    def stops(self) -> int:
        """The number of workers from which on more are not `PAYS` times as fast; 1 where none pay."""
        best, limit = 1.0, 1
        for workers, speed in zip(self.workers, self.speed_ups, strict=True):
            if speed >= PAYS * best:
                best, limit = speed, workers
        return limit

    @property
    def sentence(self) -> str:
        """Where it stops paying, in words."""
        if self.stops == 1:
            return f"{self.name} is not worth it with any number of workers."
        most = self.workers[-1]
        speed = self.speed_ups[self.workers.index(self.stops)]
        more = "" if self.stops == most else f"; {most} are {self.speed_ups[-1]:.2f}x"
        return f"{self.name} gains from up to {self.stops} workers, {speed:.2f}x{more}."


def scalings(choice: Choice) -> list[Scaling]:
    """Return the scaling of every plan that was ranked with several numbers of workers, the fastest first.

    Of a plan with options, the fastest variant counts for each number of workers.
    """
    single = min((p.seconds for p in choice.ranking if p.plan.workers == 1), default=0.0)
    fastest: dict[str, dict[int, float]] = {}
    for each in choice.ranking:
        if each.plan.workers > 1 and single:
            mine = fastest.setdefault(each.plan.name, {})
            mine[each.plan.workers] = max(mine.get(each.plan.workers, 0.0), single / each.seconds)
    curves = [
        Scaling(name, tuple(sorted(mine)), tuple(mine[workers] for workers in sorted(mine)))
        for name, mine in fastest.items()
    ]
    return sorted(curves, key=lambda each: -max(each.speed_ups))
