"""A barrier: the last of its parties lets all continue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BarrierModel:
    """`threading.Barrier`."""

    parties: int
    arrived: int = 0
    generation: int = 0
    broken: bool = False

    def arrive(self) -> tuple[int, int]:
        """Arrive; return the generation, and how many had arrived before."""
        self.arrived += 1
        return self.generation, self.arrived - 1

    @property
    def complete(self) -> bool:
        return self.arrived == self.parties

    def open(self) -> None:
        """Let the parties of this generation continue."""
        self.arrived, self.generation = 0, self.generation + 1

    def passed(self, generation: int) -> bool:
        """Whether the parties of a generation may continue, or the barrier broke."""
        return self.generation > generation or self.broken

    def reset(self) -> None:
        """Begin anew; those that wait fail."""
        self.broken = self.arrived > 0
        self.arrived = 0
