"""The operations of a model's graph, as splits see them: shapes and names, without tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paceline.algorithms.splits import Placement

Shape = tuple[int, ...]


class Held(NamedTuple):
    """A parameter or a buffer of an operation's module."""

    role: str  # its name in the module, such as "weight"
    name: str  # its name in the model
    shape: Shape
    #: Whether training changes it by its gradient; not so a buffer, or a parameter that is frozen.
    trained: bool = True


@dataclass(frozen=True)
class SplitNode:
    """One operation of the graph."""

    name: str
    #: What it computes, as far as splits care: "linear", "elementwise", "reshape", ...; "read" where it only reads a
    #: parameter by name; "any" for what is not known.
    kind: str
    #: The values that it takes, and the shape of each; None where it is not a tensor.
    takes: tuple[str, ...] = ()
    shapes: tuple[Shape | None, ...] = ()
    #: The shape of what it makes; None where that is not a tensor.
    shape: Shape | None = None
    held: tuple[Held, ...] = ()
    #: The module that it is, as users name it; empty for a function.
    layer: str = ""
    #: What else its kind needs to know, such as the dimensions of a reduction.
    facts: Mapping[str, object] = field(default_factory=dict)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a fact that is some whole numbers."""
        values = self.facts.get(name, ())
        assert isinstance(values, tuple)
        return values

    def shape_of(self, role: str) -> Shape:
        return next(held.shape for held in self.held if held.role == role)


class Layout(NamedTuple):
    """How everything around an operation is placed."""

    #: Of each value that it takes; what is not a tensor is always whole.
    takes: tuple[Placement, ...]
    gives: Placement
    #: Of its parameters and buffers while it computes, by role; whole where a role is missing.
    uses: Mapping[str, Placement]


class Split(Protocol):
    """One way to split a layer over the workers of a group. One file per way."""

    @property
    def name(self) -> str:
        """The word that users write."""

    def refusal(self, node: SplitNode, workers: int) -> str:
        """Return why this operation cannot be split so; an empty string if it can."""

    def layout(self, node: SplitNode, workers: int) -> Layout:
        """Return how what the operation takes, gives and holds is placed."""
