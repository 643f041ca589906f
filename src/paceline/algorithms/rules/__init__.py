"""Rules: how an arrival changes the parameters.

    rule            what arrives                   where                    members
    Rule            the gradient of a batch        at a store               plain, dc_asgd, gap_aware
    Exchanging      a replica that has stepped     at a centre              easgd, diloco, map_reduce
    Averaging       replicas that have stepped     in a collective          model averaging, easgd, diloco, d_psgd

A `Rule` updates a store, which holds parameters and the user's optimizer. Under an `Averaging` or `Exchanging` rule
every worker steps a replica of its own, which is averaged with the others, or exchanged with a centre, every few steps.
One class per published method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Memory = dict[str, "Tensor"]  # a rule's memory of one parameter


class Store(Protocol):
    """Some parameters with their optimizer: one shard of a server, or a worker's own replica."""

    @property
    def values(self) -> Sequence[Tensor]:
        """The newest parameters."""

    @property
    def memory(self) -> Sequence[Memory]:
        """The rule's memory, one entry per parameter."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the user's optimizer apply these gradients."""


@dataclass(frozen=True)
class GradientUpdate:
    gradients: Sequence[Tensor | None]  # one per parameter; None where this batch did not touch it
    pulled: Sequence[Tensor] = ()  # the parameters they were computed from, for a rule that looks back


class Rule(Protocol):
    @property
    def uses_pulled(self) -> bool:
        """Whether the rule needs the parameters that a gradient was computed from."""

    def remembers(self, parameter: Tensor) -> Memory:
        """Return the rule's memory of a parameter before the first update."""

    def update(self, store: Store, arrival: GradientUpdate) -> None:
        """Apply an arrival to a store."""


class Averaging(Protocol):
    @property
    def every(self) -> int:
        """Local steps between two averages; 0 for a single average at the end."""

    @property
    def mixes_first(self) -> bool:
        """Whether replicas are averaged before the step whose gradient is ready, or after it."""

    def remembers(self, parameter: Tensor) -> Memory:
        """Return the rule's memory of a parameter before the first update."""

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        """Return what a worker contributes to the mean for one parameter."""

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        """Change the worker's parameter and its memory in place."""

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        """Return the value of one parameter that is the training's result."""


class Exchanging(Protocol):
    @property
    def every(self) -> int:
        """Local steps between two exchanges."""

    @property
    def parts(self) -> int:
        """Parts of the data, on each of which a replica is trained from the start; 0: replicas are never restarted."""

    def remembers(self, parameter: Tensor) -> Memory:
        """Return the centre's memory of a parameter before the first exchange."""

    def carries(self, parameter: Tensor) -> Memory:
        """Return each worker's memory of a parameter."""

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        """Exchange one worker's parameter with the centre's: change both in place."""
