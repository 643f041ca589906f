"""What generated code is not made of, and names that it would mistake."""

from __future__ import annotations

from typing import TypeVar

from paceline.errors import JobError

Value = TypeVar("Value")


class CannotFuse(JobError):
    """A layer, loss or optimizer that has no kernel."""


class Distinct(dict[str, Value]):
    """Values by names of which each is used once: a parameter may be called as what is computed of others is."""

    def __setitem__(self, name: str, value: Value) -> None:
        if name in self:
            raise mistaken(name)
        super().__setitem__(name, value)


def mistaken(name: str) -> CannotFuse:
    """The error of a name that two values have."""
    return CannotFuse(
        f"generated code has two values called {name!r}: rename the layer or the parameter of this name, or use "
        "compute='autograd'"
    )
