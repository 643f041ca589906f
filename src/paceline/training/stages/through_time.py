"""A recurrent cell over time, whose gradient is exact and needs memory for only so many hidden states.

    rnn = ThroughTime(nn.LSTMCell(64, 128), memory=8)
    outputs, state = rnn(x, state)          # x: time x batch x features; state None: zeros

Which states are kept, and which steps are computed again, is `algorithms.schedules.through_time`'s to say. The forward
pass keeps what the first descent of that plan keeps; a step's inner activations exist only while its own gradient is
made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.algorithms.chance import mix
from paceline.algorithms.schedules.through_time import Advance, Back, Drop, Keep, Order, orders
from paceline.errors import JobError
from paceline.training.gradients.loss import gradients_of
from paceline.training.gradients.replica import draws

State = tuple[Tensor, ...]


class ThroughTime(nn.Module):
    """A recurrent layer over a cell, which keeps at most `memory` hidden states at one time.

    `cell(x, state)` returns the next state: a tensor, or a tuple whose first entry is the output, as nn.LSTMCell does.
    """

    def __init__(self, cell: nn.Module, memory: int) -> None:
        super().__init__()
        if memory < 1:
            raise JobError(f"memory={memory}: at least one hidden state must be kept, the first")
        self.cell, self.memory = cell, memory
        self.chance = any(draws(part) for part in cell.modules())

    def forward(self, x: Tensor, state: Tensor | State | None = None) -> tuple[Tensor, Tensor | State]:
        """Return all outputs, time x batch x features, and the last state."""
        begin = self._begin(x) if state is None else state if isinstance(state, tuple) else (state,)
        seed = int(torch.randint(2**62, ())) if self.chance and self.training else None
        run = _CellRun(self.cell, isinstance(state, tuple) or self._makes_tuples, seed)
        parameters = [p for p in self.cell.parameters() if p.requires_grad]
        outputs, *last = _Bounded.apply(  # type: ignore[no-untyped-call]
            run, self.memory, len(begin), x, *begin, *parameters
        )
        return outputs, tuple(last) if run.tuples else last[0]

    @property
    def _makes_tuples(self) -> bool:
        return isinstance(self.cell, nn.LSTMCell)

    def _begin(self, x: Tensor) -> State:
        size = getattr(self.cell, "hidden_size", None)
        if size is None:
            raise JobError(
                f"{type(self.cell).__name__} has no hidden_size to make zeros of; give the state to begin with"
            )
        return tuple(x.new_zeros(x.shape[1], size) for _ in range(2 if self._makes_tuples else 1))


class _CellRun:
    """Runs the cell one step at a time; a recomputed step draws the same random numbers."""

    def __init__(self, cell: nn.Module, tuples: bool, seed: int | None) -> None:
        self.cell, self.tuples, self.seed = cell, tuples, seed

    def step(self, at: int, x: Tensor, state: State) -> State:
        """Run one step; `x` is the input at this time."""
        if self.seed is not None:
            torch.default_generator.manual_seed(mix(self.seed, at))
        hidden = self.cell(x, state if self.tuples else state[0])
        return tuple(hidden) if self.tuples else (hidden,)

    def advance(self, start: int, to: int, x: Tensor, state: State) -> State:
        for at in range(start, to):
            state = self.step(at, x[at], state)
        return state


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _CellRun, memory: int, width: int, x: Tensor, *rest: Tensor) -> Any:
        """Run all steps once, keeping the states that the plan keeps before its first gradient."""
        begin, steps = rest[:width], len(x)
        plan = list(orders(steps, memory))
        first = next((place for place, order in enumerate(plan) if isinstance(order, Back)), 0)
        positions = {order.at for order in plan[:first] if isinstance(order, Keep)}
        states: dict[int, State] = {0: begin}
        state, outputs = begin, []
        for at in range(steps):
            if at in positions:
                states[at] = state
            state = run.step(at, x[at], state)
            outputs.append(state[0])
        ctx.run, ctx.kept, ctx.plan, ctx.width = run, states, plan[first:], width
        ctx.where = next((order.at for order in plan if isinstance(order, Back)), 0)
        ctx.save_for_backward(x, *rest[width:])
        return (torch.stack(outputs), *state)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, *parameters = ctx.saved_tensors
        along = _Along(ctx.run, x, parameters, gradients[0], list(gradients[1:]), ctx.needs_input_grad[3])
        along.follow(ctx.plan, ctx.kept, ctx.where)
        return (None, None, None, along.of_x(), *along.of_state, *along.of_parameters)


class _Along:
    """The backward pass, with the gradients so far."""

    def __init__(
        self, run: _CellRun, x: Tensor, parameters: Sequence[Tensor], outputs: Tensor, last: list[Tensor], wants_x: bool
    ) -> None:
        self.run, self.x, self.parameters, self.outputs, self.wants_x = run, x, parameters, outputs, wants_x
        self.of_state = last
        self.of_parameters = [torch.zeros_like(p) for p in parameters]
        self.steps: dict[int, Tensor] = {}

    def follow(self, plan: Sequence[Order], states: dict[int, State], where: int) -> None:
        """Execute the plan. The forward pass ended elsewhere, so the steps to `where` are run again first."""
        nearest = max(states)
        state = self.run.advance(nearest, where, self.x, states[nearest])
        for order in plan:
            if isinstance(order, Advance):
                state = self.run.advance(order.start, order.to, self.x, states[order.start])
            elif isinstance(order, Keep):
                states[order.at] = state
            elif isinstance(order, Drop):
                del states[order.at]
            else:
                self.back(order.at, states.get(order.at, state))

    def back(self, at: int, state: State) -> None:
        apart = tuple(value.detach().requires_grad_() for value in state)
        with torch.enable_grad():
            x = self.x[at].detach().requires_grad_(self.wants_x)
            outputs = self.run.step(at, x, apart)
        seeds = [self.of_state[0] + self.outputs[at], *self.of_state[1:]]
        inputs = [*apart, *self.parameters, *([x] if self.wants_x else [])]
        gradients = gradients_of(inputs, outputs, seeds)
        width = len(apart)
        self.of_state = [torch.zeros_like(s) if g is None else g for s, g in zip(state, gradients[:width], strict=True)]
        for total, gradient in zip(self.of_parameters, gradients[width:], strict=False):
            if gradient is not None:
                total.add_(gradient)
        if self.wants_x:
            self.steps[at] = torch.zeros_like(x) if gradients[-1] is None else gradients[-1]

    def of_x(self) -> Tensor | None:
        return torch.stack([self.steps[at] for at in range(len(self.x))]) if self.wants_x else None
