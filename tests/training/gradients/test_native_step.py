"""An update in one pass of generated code has the bits of the user's optimizer and of the rule."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.algorithms.rules.gradients import Plain
from paceline.kernels.exchange import PLACE
from paceline.kernels.one_pass import served_step
from paceline.kernels.resident import norm, ways
from paceline.runtime.engines.servers import gradient
from paceline.training.gradients import replica
from paceline.training.gradients.fused_replica import COUNTS, native_clipping
from paceline.training.gradients.native_step import PLAIN, NativeStep, NativeVersions, agrees, native_step
from paceline.training.gradients.replica import clipped
from paceline.training.parameters.optimizers import bare_step

# --- Clipping in generated code has the bits of PyTorch's -------------------------------------------------------------

SHAPES = [torch.Size(shape) for shape in ((3,), (), (9, 7), (4, 2, 3, 3), (61, 20))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e-4, 0.02, 1.0, 1e12, float("inf"), float("nan")])
def test_gradients_in_padded_rows(size: float, dtype: torch.dtype) -> None:
    draw, rows = torch.Generator().manual_seed(5), []
    padded = torch.zeros(8192, dtype=dtype)
    views, start = [], 0
    for shape in SHAPES:
        high, wide = (shape[:-1].numel(), shape[-1]) if shape else (1, 1)
        rows.append((0, start, high, wide, wide + 5))
        views.append(padded[start : start + high * (wide + 5)].view(high, wide + 5)[:, :wide])
        start += high * (wide + 5) + 3
    clipping = native_clipping(np.array(rows, PLACE), SHAPES, dtype, 0.7)
    assert clipping is not None
    for _ in range(20):
        for view in views:
            view.copy_(torch.randn(view.shape, dtype=dtype, generator=draw) * size)
        theirs = clipped([v.reshape(shape).clone() for v, shape in zip(views, SHAPES, strict=True)], 0.7)
        clipping.apply(padded)
        for mine, other in zip(views, theirs, strict=True):
            assert other is not None
            assert torch.equal(mine.nan_to_num(0.5), other.view(mine.shape).nan_to_num(0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_way_of_adding_squares_is_pytorchs(dtype: torch.dtype) -> None:
    """The others are told from it by the vectors that are compared."""
    draw = torch.Generator().manual_seed(7)
    vectors = [torch.randn(count, dtype=dtype, generator=draw) for count in COUNTS for _ in range(9)]
    alike = [all(norm(way, x) == float(torch.linalg.vector_norm(x)) for x in vectors) for way in range(ways(dtype))]
    assert sum(alike) == 1


pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 1e-3},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 1e-3},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
]

OPTIMIZERS = [
    *(partial(torch.optim.SGD, **settings) for settings in SETTINGS),
    *(
        partial(kind, weight_decay=decay)
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
        for decay in (0.0, 0.02)
    ),
    partial(torch.optim.Adam, betas=(0.3, 0.99), eps=1e-4),
    partial(torch.optim.AdamW, betas=(0.0, 0.9)),
    partial(torch.optim.RMSprop, alpha=0.9, momentum=0.9),
    partial(torch.optim.Adagrad, lr_decay=0.1, initial_accumulator_value=0.5),
]


class Twins:
    """The same parameters twice: stepped by PyTorch, and by generated code."""

    def __init__(self, dtype: torch.dtype, make: Any) -> None:
        draw = torch.Generator().manual_seed(3)
        values = [torch.randn(shape, dtype=dtype, generator=draw) for shape in ((7,), (33, 65), (), (4, 3, 2))]
        self.theirs, self.mine = ([nn.Parameter(v.clone()) for v in values] for _ in range(2))
        self.draw, self.dtype = draw, dtype
        self.optimizers = [self._optimizer(each, make) for each in (self.theirs, self.mine)]

    @staticmethod
    def _optimizer(parameters: list[nn.Parameter], make: Any) -> torch.optim.Optimizer:
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.3}]
        optimizer: torch.optim.Optimizer = make(groups, lr=0.1)
        return optimizer

    def step(self, without: int = -1, strided: int = -1) -> None:
        steps = bare_step(self.optimizers[0]), self.native
        for number, pair in enumerate(zip(self.theirs, self.mine, strict=True)):
            gradient = torch.randn(pair[0].shape, dtype=self.dtype, generator=self.draw)
            if number == strided:
                gradient = gradient.T.contiguous().T
            for parameter in pair:
                parameter.grad = None if number == without else gradient.clone(memory_format=torch.preserve_format)
        for step in steps:
            step()

    @property
    def native(self) -> NativeStep:
        if not hasattr(self, "_native"):
            made = native_step(self.optimizers[1])
            assert made is not None
            self._native = made
        return self._native

    def check(self) -> None:
        for a, b in zip(self.theirs, self.mine, strict=True):
            assert torch.equal(a, b)
            kept = [optimizer.state.get(p, {}) for optimizer, p in zip(self.optimizers, (a, b), strict=True)]
            assert kept[0].keys() == kept[1].keys()
            assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


@pytest.mark.parametrize(
    ("make", "dtype"),
    [  # settings of a kind in one precision and the other by turns
        pytest.param(
            make,
            dtype,
            marks=[] if (number + place) % 2 else [pytest.mark.soak],
            id=f"{make.func.__name__} {make.keywords} {dtype}",
        )
        for number, make in enumerate(OPTIMIZERS)
        for place, dtype in enumerate((torch.float32, torch.float64))
    ],
)
def test_a_step_has_the_optimizers_bits(dtype: torch.dtype, make: Any) -> None:
    twins = Twins(dtype, make)
    for _ in range(5):
        twins.step()
    twins.check()


def test_another_step_does_not_agree() -> None:
    """A text that leaves out weight decay is found out, and so would be a PyTorch that rounds otherwise."""
    with_decay, without = (torch.optim.Adam([torch.zeros(1)], weight_decay=decay) for decay in (1e-3, 0.0))
    step = served_step(without)
    assert step is not None
    assert agrees(without, torch.float32, step, PLAIN, Plain())
    assert not agrees(with_decay, torch.float32, step, PLAIN, Plain())


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.Adam([torch.zeros(1)], amsgrad=True),
        torch.optim.SGD([torch.zeros(1)], lr=0.1, maximize=True),
        torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9, dampening=0.1),
        torch.optim.Adam([torch.zeros(1)], lr=torch.tensor(0.1)),
        torch.optim.RMSprop([torch.zeros(1)], centered=True),
        torch.optim.SGD([{"params": [torch.zeros(1)], "momentum": 0.5}, {"params": [torch.zeros(1)]}], lr=0.1),
    ],
    ids=["amsgrad", "maximize", "dampening", "lr as a tensor", "centered", "groups that differ"],
)
def test_optimizers_without_a_text(optimizer: torch.optim.Optimizer) -> None:
    assert served_step(optimizer) is None


def test_settings_are_read_in_every_step_and_another_form_is_pytorchs() -> None:
    twins = Twins(torch.float32, partial(torch.optim.SGD, momentum=0.9))
    for number in range(8):
        for optimizer in twins.optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
            optimizer.param_groups[0]["weight_decay"] = 0.01 if number in (3, 4) else 0.0
        twins.step()
    twins.check()


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01), torch.optim.Adam])
def test_gradients_that_are_missing_or_not_contiguous_are_pytorchs(make: Any) -> None:
    twins = Twins(torch.float32, make)
    for number in range(6):
        twins.step(without=number % 4, strided=1 if number % 2 else -1)
    twins.check()


def test_a_step_that_somebody_listens_to_is_pytorchs() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    heard = torch.optim.SGD([parameter], lr=0.1)
    heard.register_step_post_hook(lambda *_: None)
    own = type("Own", (torch.optim.SGD,), {})([parameter], lr=0.1)
    rounded = torch.optim.SGD([nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], lr=0.1)
    for optimizer in (heard, own, rounded, torch.optim.SGD([parameter], lr=torch.tensor(0.1))):
        assert native_step(optimizer) is None


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 17), nn.BatchNorm1d(17), nn.Tanh(), nn.Linear(17, 3))


def trained(plan: str, optimizer: Any) -> str:
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(96, 9, generator=draw), torch.randint(3, (96,), generator=draw)
    job = pl.Job(
        model=model,
        data=data,
        loss=nn.CrossEntropyLoss(),
        batch_size=12,
        epochs=3,
        optimizer=optimizer,
    )
    values = pl.train(job, plan, engine="virtual", folder=None).model.state_dict().values()
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()


@pytest.mark.parametrize(
    "optimizer",
    [*(partial(torch.optim.SGD, lr=0.1, **settings) for settings in SETTINGS[1::2]), torch.optim.AdamW],
    ids=["decay", "momentum", "nesterov", "adamw"],
)
@pytest.mark.parametrize(
    "plan",
    [
        "sequential",
        "downpour:workers=3,shards=2",
        "ssp:workers=3",
        "dc_asgd:workers=3",
        "dc_asgd:workers=3,lam=0",
        "dc_asgd:workers=2,mode=adaptive",
        "backup:workers=3",
        "gossip:workers=3,mode=asynchronous",
        "easgd:workers=2",
    ],
)
def test_a_training_has_the_same_bits_with_and_without(
    plan: str, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    for kind, name in ((NativeStep, "__call__"), (NativeVersions, "make")):
        made = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, made=made: (passes.append(1), made(*given))[1])
    found = trained(plan, optimizer)
    assert passes
    monkeypatch.setattr(replica, "native_step", lambda optimizer: None)
    monkeypatch.setattr(gradient, "native_versions", lambda *_: None)
    monkeypatch.setattr("paceline.runtime.engines.servers.shard_memory.native_step", lambda optimizer: None)
    assert trained(plan, optimizer) == found
