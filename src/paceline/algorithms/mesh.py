"""A mesh: workers as coordinates on named axes, and the groups along each axis.

    data=2 x inside=3      inside 0   inside 1   inside 2
    data 0                 worker 0   worker 1   worker 2       a group along `inside`
    data 1                 worker 3   worker 4   worker 5       the same
                           |
                           a group along `data`: workers 0 and 3

The last axis varies fastest, so its groups are neighbouring workers. PyTorch's DeviceMesh numbers ranks in the same
way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from paceline.errors import PlanError


@dataclass(frozen=True)
class Mesh:
    """Named axes with the number of workers along each."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) < len(names) or any(size < 1 for _, size in self.axes):
            raise PlanError(f"a mesh has distinct axes of at least one worker each, not {self}")

    @property
    def workers(self) -> int:
        return prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Return the number of workers along an axis; 1 for an axis that the mesh lacks."""
        return dict(self.axes).get(axis, 1)

    def coordinate(self, worker: int, axis: str) -> int:
        """Return where a worker lies along an axis; 0 for an axis that the mesh lacks."""
        return worker // self._stride(axis) % self.size(axis)

    def group(self, worker: int, axis: str) -> tuple[int, ...]:
        """Return the workers that differ from this one along the axis alone, in the order of the axis."""
        stride = self._stride(axis)
        first = worker - self.coordinate(worker, axis) * stride
        return tuple(first + place * stride for place in range(self.size(axis)))

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """Return all groups along an axis; every worker is in exactly one of them."""
        return sorted({self.group(worker, axis) for worker in range(self.workers)})

    def _stride(self, axis: str) -> int:
        """Return by how much the numbers of two neighbours along an axis differ."""
        names = [name for name, _ in self.axes]
        return prod(size for _, size in self.axes[names.index(axis) + 1 :]) if axis in names else 1

    def __str__(self) -> str:
        return " x ".join(f"{name}={size}" for name, size in self.axes)
