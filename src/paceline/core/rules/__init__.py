"""Rules: how does an arrival change the parameters?

    rule            what arrives                where                     members
    Rule            the gradient of a batch     at a home's parameters    plain, dc_asgd
    Exchanging      a replica that has moved    at a centre               easgd, diloco, map_reduce
    Averaging       replicas that have moved    in a meeting              model averaging, easgd, diloco, d_psgd

A `Rule` is asked to `update` a home (the place where parameters and the user's optimizer live). Under an `Averaging`
or `Exchanging` rule every worker steps a replica of its own, and now and then meets the others, or a centre. One file
per published method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Memory = dict[str, "Tensor"]  # what a rule remembers of one parameter


class Home(Protocol):
    """Where some parameters live: one shard of a server, or a worker's own replica."""

    @property
    def values(self) -> Sequence[Tensor]:
        """The newest parameters."""

    @property
    def memory(self) -> Sequence[Memory]:
        """What the rule remembers, one per parameter."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the user's optimizer apply these gradients."""


@dataclass(frozen=True)
class Arrival:
    gradients: Sequence[Tensor | None]  # one per parameter; None where this batch did not touch it
    pulled: Sequence[Tensor] = ()  # the parameters they were computed from, for a rule that looks back


class Rule(Protocol):
    @property
    def looks_back(self) -> bool:
        """Whether it needs to know the parameters that a gradient was computed from."""

    def remembers(self, parameter: Tensor) -> Memory:
        """What the rule remembers of a parameter, as it is at the start."""

    def update(self, home: Home, arrival: Arrival) -> None: ...


class Averaging(Protocol):
    @property
    def every(self) -> int:
        """Local steps between two meetings; 0 for one meeting, at the end."""

    @property
    def mixes_first(self) -> bool:
        """Whether a meeting comes before the step whose gradient is ready, or after it."""

    def remembers(self, parameter: Tensor) -> Memory:
        """What the rule remembers of a parameter, as it is at the start."""

    def brings(self, value: Tensor, memory: Memory) -> Tensor:
        """What a worker brings to the meeting for one parameter; what it gets is the mean of all it meets."""

    def takes(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        """Change the worker's parameter, and what it remembers, in place."""

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        """What the training made of one parameter."""


class Exchanging(Protocol):
    @property
    def every(self) -> int:
        """Local steps between two exchanges."""

    @property
    def parts(self) -> int:
        """Parts of the data, on each of which a replica is trained from the start; 0: replicas go on and on."""

    def remembers(self, parameter: Tensor) -> Memory:
        """What the centre remembers of a parameter, as it is at the start."""

    def carries(self, parameter: Tensor) -> Memory:
        """What each worker remembers of it."""

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        """One worker meets the centre: change both, in place."""
