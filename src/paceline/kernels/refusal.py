"""What generated code is not made of, and names that it would mistake."""

from __future__ import annotations

from typing import Protocol, TypeVar

from paceline.errors import JobError

#: Names of values that every program has, or may have.
RESERVED = ("input", "scores", "rows_of_scores", "share")


class CannotFuse(JobError):
    """A layer, loss or optimizer that has no kernel."""


class Memory(Protocol):
    """A value that may be the memory of another one, `base`, in a shape of its own."""

    @property
    def base(self) -> str: ...


Value = TypeVar("Value", bound=Memory)


class Distinct(dict[str, Value]):
    """Values by names. No name is used twice, but for the same view of the same memory.

    A layer or a parameter may be called as what is computed of others is.
    """

    def __setitem__(self, name: str, value: Value) -> None:
        if name in self and not (value.base and self[name] == value):
            raise mistaken(name)
        super().__setitem__(name, value)


def mistaken(name: str) -> CannotFuse:
    """The error of a name that two values have."""
    return CannotFuse(
        f"generated code has two values called {name!r}: rename the layer or the parameter of this name, or use "
        "compute='autograd'"
    )
