"""Where values lie: one arena, in which a value's place is free again after its last reader."""

from __future__ import annotations

from dataclasses import dataclass, field

SLACK = 8  # numbers that a kernel may read, and multiply by 0, after the end of a value
ALIGNMENT = 16


@dataclass
class Arena:
    """Places in order; `size` is what they need at most."""

    size: int = 0
    #: (offset, end) of what is in use, by name.
    used: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, name: str, count: int) -> int:
        """Return the lowest place where so many numbers fit."""
        length, at = count + SLACK, 0
        for begin, end in sorted(self.used.values()):
            if at + length <= begin:
                break
            at = max(at, -(-end // ALIGNMENT) * ALIGNMENT)
        self.used[name] = (at, at + length)
        self.size = max(self.size, at + length)
        return at

    def free(self, name: str) -> None:
        """Give a place back."""
        self.used.pop(name)
