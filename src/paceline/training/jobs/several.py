"""Several optimizers of one model as one optimizer; and those that evaluate the loss themselves, which are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from paceline.errors import JobError

# --- Optimizers that evaluate the loss themselves, several times in a step --------------------------------------------


def refuse_closures(optimizer: torch.optim.Optimizer) -> None:
    """Raise JobError for an optimizer, or one of several, whose `step` cannot do without a closure, such as LBFGS."""
    for one in (optimizer, *getattr(optimizer, "each", ())):
        if needs_closure(one):
            raise JobError(
                f"{type(one).__name__} evaluates the loss several times in a step, by a closure, and cannot be sharded "
                "or shared: give a first-order optimizer, such as torch.optim.Adam. L-BFGS is plan sandblaster of "
                "paceline.train, which makes its steps itself and does not use the job's optimizer; give any there"
            )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` has an argument without a default."""
    _, *arguments = inspect.signature(type(optimizer).step).parameters.values()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in named and each.default is inspect.Parameter.empty for each in arguments)


Optimizer = torch.optim.Optimizer


class SeveralOptimizers(Optimizer):
    """Steps each of several optimizers, in their order.

    Its parameter groups are theirs, one optimizer's after another's, and all state is its own: so whatever copies,
    stores or schedules an optimizer does the same with this one.
    """

    def __init__(self, each: Sequence[Optimizer]) -> None:
        self.each = tuple(each)
        #: The optimizer that steps each parameter group, by its place in `each`.
        self.owners = [place for place, one in enumerate(each) for _ in one.param_groups]
        common = set.intersection(*(set(one.defaults) for one in each))
        defaults = {name: value for name, value in each[0].defaults.items() if name in common}
        super().__init__(list(chain.from_iterable(one.param_groups for one in each)), defaults)
        for one in each:
            self.state.update(one.state)  # made in its constructor, by some

    @property
    def names(self) -> list[str]:
        """The classes of the optimizers."""
        return [type(one).__name__ for one in self.each]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each optimizer that has parameters here."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for place, one in enumerate(self.each):
            groups = [group for owner, group in zip(self.owners, self.param_groups, strict=True) if owner == place]
            if any(group["params"] for group in groups):
                # The one may have stepped for a copy of this optimizer, with other parameters.
                one.state, one.param_groups = self.state, groups
                one.step()
        return loss


def together(optimizers: Sequence[Any]) -> SeveralOptimizers:
    """Return several optimizers as one; raise `JobError` for what is none, or for a parameter that two of them have."""
    if not optimizers or not all(isinstance(one, Optimizer) for one in optimizers):
        kinds = ", ".join(type(one).__name__ for one in optimizers)
        raise JobError(
            f"optimizer= returned a {type(optimizers).__name__} of {kinds or 'nothing'}; give one optimizer, or "
            "several in a "
            "list, each with parameters of its own"
        )
    parameters = [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]
    if len(set(map(id, parameters))) < len(parameters):
        raise JobError(
            "two of the optimizers that optimizer= returned have the same parameter; give each parameter to one of them"
        )
    return SeveralOptimizers(optimizers)


def nested(optimizer: Optimizer) -> list[str]:
    """Return the classes of optimizers that an optimizer of the user's steps by, and whose state is not its own."""
    if isinstance(optimizer, SeveralOptimizers):
        return sorted({name for one in optimizer.each for name in nested(one)})
    candidates: list[Any] = []
    for value in vars(optimizer).values():
        if isinstance(value, list | tuple):
            candidates += value
        else:
            candidates += value.values() if isinstance(value, dict) else [value]
    return [type(one).__name__ for one in candidates if isinstance(one, Optimizer) and one.state is not optimizer.state]
