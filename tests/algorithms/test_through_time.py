"""Backpropagation through time in bounded memory: as few forward steps as there can be, and the exact gradient."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.algorithms.schedules.through_time import Advance, Back, Drop, Keep, forwards, orders
from paceline.errors import JobError
from paceline.training.stages.memory_estimate import Live


@cache
def fewest(steps: int, memory: int) -> int:
    """The paper's recursion as it stands."""
    if steps < 2:
        return steps
    if memory == 1:
        return steps * (steps + 1) // 2
    return min(y + fewest(steps - y, memory - 1) + fewest(y, memory) for y in range(1, steps))


def test_the_plan_takes_as_few_steps_as_the_recursion_says_and_keeps_no_more_states() -> None:
    for steps in range(1, 60):
        for memory in range(1, 10):
            kept, most, count, at, backs = {0}, 1, 0, 0, []
            for order in orders(steps, memory):
                if isinstance(order, Advance):
                    assert order.start in kept
                    count, at = count + order.to - order.start, order.to
                elif isinstance(order, Keep):
                    assert order.at == at
                    kept.add(at)
                    most = max(most, len(kept))
                elif isinstance(order, Drop):
                    kept.remove(order.at)
                else:
                    assert order.at in kept or order.at == at
                    backs.append(order.at)
                    count += 1
            assert backs == list(reversed(range(steps)))
            assert count == forwards(steps, memory) == fewest(steps, memory)
            assert most <= memory
            assert memory < steps or count == 2 * steps - 1


def test_the_plan_of_seven_steps_and_three_states() -> None:
    assert list(orders(7, 3)) == [
        Advance(0, 1), Keep(1), Advance(1, 4), Keep(4), Advance(4, 6), Back(6), Advance(4, 5), Back(5), Back(4),
        Drop(4), Advance(1, 2), Keep(2), Advance(2, 3), Back(3), Back(2), Drop(2), Back(1), Drop(1), Back(0),
    ]  # fmt: skip


def by_hand(cell: nn.Module, x: Tensor, state: object) -> Tensor:
    outputs = []
    for at in range(len(x)):
        state = cell(x[at], state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(outputs)


@pytest.mark.parametrize("memory", [1, 2, 5, 40])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_the_gradient_is_that_of_the_whole_graph(kind: type[nn.Module], memory: int) -> None:
    torch.manual_seed(0)
    cell = kind(3, 4).double()  # type: ignore[call-arg]
    x = torch.randn(17, 2, 3, dtype=torch.float64, requires_grad=True)
    begin = [torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2 if kind is nn.LSTMCell else 1)]
    state = tuple(begin) if len(begin) > 1 else begin[0]
    weights = torch.randn(17, 2, 4, dtype=torch.float64)
    wanted = [x, *begin, *cell.parameters()]
    expected = torch.autograd.grad((by_hand(cell, x, state) * weights).sum(), wanted)
    outputs, last = pl.ThroughTime(cell, memory)(x, state)
    found = torch.autograd.grad((outputs * weights).sum(), wanted)
    assert type(last) is type(state)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_step_that_is_computed_again_draws_the_same_chance() -> None:
    class Cell(nn.Module):
        hidden_size = 4

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = nn.GRUCell(3, 4), nn.Dropout(0.4)

        def forward(self, x: Tensor, state: Tensor) -> Tensor:
            result: Tensor = self.drop(self.inner(x, state))
            return result

    torch.manual_seed(0)
    cell, x = Cell().double(), torch.randn(9, 2, 3, dtype=torch.float64)
    found = []
    for memory in (1, 3, 9):
        torch.manual_seed(5)
        outputs, _ = pl.ThroughTime(cell, memory)(x)
        found.append(torch.autograd.grad(outputs.square().sum(), list(cell.parameters())))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_fewer_states_take_less_memory() -> None:
    """Besides the outputs, which are asked for."""
    torch.manual_seed(0)
    cell, x = nn.LSTMCell(8, 64), torch.randn(120, 4, 8)
    most = {}
    for memory in (3, 120):
        live = Live()
        with live:
            outputs, _ = pl.ThroughTime(cell, memory)(x)
            outputs.sum().backward()
        most[memory] = live.most
    whole = Live()
    with whole:
        by_hand(cell, x, None).sum().backward()
    hidden = 2 * 4 * 64 * 4  # bytes of a state
    assert most[120] - most[3] > 100 * hidden
    assert whole.most > 2 * most[3]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(JobError, match="at least one hidden state"):
        pl.ThroughTime(nn.GRUCell(3, 4), 0)
    with pytest.raises(JobError, match="has no hidden_size"):
        pl.ThroughTime(nn.Linear(3, 4), 2)(torch.randn(5, 2, 3))


def test_it_is_trained_by_any_plan_as_a_piece_of_its_own() -> None:
    from paceline.interfaces.testing.conformance import same_numbers

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.rnn, self.head = nn.Linear(6, 6), pl.ThroughTime(nn.LSTMCell(6, 8), 3), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            outputs, _ = self.rnn(self.enter(x).transpose(0, 1))
            result: Tensor = self.head(outputs[-1])
            return result

    x = torch.randn(40, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.randint(5, (40,), generator=torch.Generator().manual_seed(2))
    job = pl.Job(
        model=lambda: Net().double(),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        batch_size=10,
        epochs=3,
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    same_numbers(job, pl.Plan.parse("one_f_one_b:workers=3,cuts=rnn+head"), "local", updates=6)
