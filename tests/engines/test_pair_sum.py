"""Two workers that read each other's gradients make the steps that a table gives them, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.core.collectives import Collective
from paceline.core.collectives.central import Central
from paceline.core.collectives.halving_doubling import HalvingDoubling
from paceline.core.collectives.ring import Ring
from paceline.core.collectives.tree import Tree
from paceline.core.rules.plain import Plain
from paceline.engines.local.pair_sum import PairSum, paired
from paceline.gradients.native_step import native_step
from paceline.gradients.payload import GradientSum
from paceline.parameters.store import LocalStore
from tests.engines.test_native_sum import World, in_threads
from tests.links.conftest import MakeMemory, make_memory  # noqa: F401

UPDATES = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def job(**settings: Any) -> pl.Job:
    data = torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64)
    return pl.Job(
        model=nn.Module, data=data, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), **settings
    )


def gradients(rank: int, update: int, parameters: list[nn.Parameter]) -> GradientSum:
    """What a rank has computed: sometimes nothing, sometimes not for every parameter."""
    draw = torch.Generator().manual_seed(100 * rank + update)
    found: list[Tensor | None] = [torch.randn(p.shape, generator=draw) / 3 for p in parameters]
    if update == 2 and rank == 1:
        return GradientSum([None] * len(found), [], 0.0, 0.0, 0)
    if update in (3, 4):
        found[1] = found[1] if update == 3 and rank == 0 else None
    return GradientSum(found, [], 0.3 * (rank + 1), 0.25 + 0.5 * rank, 8)


def trained(world: World, rank: int, pair: bool, settings: dict[str, Any]) -> list[Tensor]:
    """The parameters after every update, and the mean losses."""
    module, sums = copy.deepcopy(world.module), world.sums(rank)
    parameters = list(module.parameters())
    for parameter in parameters:
        nn.init.constant_(parameter, 0.5)
    optimizer = torch.optim.SGD(parameters[::-1], lr=0.1, **settings)
    store = LocalStore(parameters, optimizer, None, Plain(), native_step(optimizer))
    both, found = paired(sums, world.layout, job(), store), list[Tensor]()
    assert both is not None
    for update in range(UPDATES):
        computed = gradients(rank, update, parameters)
        if not pair:
            whole = sums.all_reduce(update, computed)[0]
            store.step(whole.gradients)
            mean: float | None = whole.mean
        else:
            met = both.meet(update, computed)
            mean = both.step(met)
            if mean is None:
                whole = both.add(met, computed.samples)
                store.step(whole.gradients)
                mean = whole.mean
        found += [p.detach().clone() for p in parameters] + [torch.tensor(mean, dtype=torch.float64)]
    return found


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
@pytest.mark.parametrize("collective", [Ring(), Tree(), HalvingDoubling(), Central()], ids=lambda c: type(c).__name__)
def test_two_workers_have_the_bits_of_the_table(
    collective: Collective,
    settings: dict[str, Any],
    make_memory: MakeMemory,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[bool] = []
    made = PairSum.step
    monkeypatch.setattr(PairSum, "step", lambda *given: (at_once := made(*given), steps.append(at_once is not None))[0])
    results = [
        in_threads(2, partial(trained, World(make_memory(1 << 16), 2, collective), pair=pair, settings=settings))
        for pair in (False, True)
    ]
    for mine, theirs in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))  # type: ignore[call-overload]
    assert sorted(set(steps)) == [False, True]  # in one pass where every parameter has a gradient


def test_what_has_to_be_seen_or_changed_first_is_added_first(make_memory: MakeMemory) -> None:  # noqa: F811
    world = World(make_memory(1 << 16), 2, Ring())
    parameters = list(world.module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    store = LocalStore(parameters, optimizer, None, Plain(), native_step(optimizer))
    for settings in ({"gradient_clip_norm": 1.0}, {"on_nan": "skip"}):
        both = paired(world.sums(0), world.layout, job(**settings), store)
        assert both is not None
        world.shared.counters[1][0] += 1  # the other's offer
        assert both.step(both.meet(0, gradients(0, 0, parameters))) is None
    assert paired(world.sums(0), world.layout, job(compute="fused"), store) is None
    three = World(make_memory(1 << 16), 3, Ring())
    assert paired(three.sums(0), three.layout, job(), store) is None
