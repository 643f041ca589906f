from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import MachineError
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.runtime.backend import group
from paceline.runtime.engines.workers.arena import Arena, ArenaShape
from paceline.runtime.links.memory import require_store_order
from paceline.training.parameters.layout import lay_out


def _arena() -> None:
    module = nn.Linear(2, 2)
    shape = ArenaShape.of(Plan.parse("ring"), lay_out(module, 1, ()), 1)
    Arena.create(shape).close()


def _own_loop() -> None:
    module = nn.Linear(2, 2)
    with pl.parallel(module, torch.optim.SGD(module.parameters()), "ring"):
        pass


USERS: dict[str, Callable[[], object]] = {
    "arena": _arena,
    "own loop": _own_loop,
    **{
        plan: lambda plan=plan: pl.train(JOBS["mlp"](), plan, folder=None, max_updates=1)  # type: ignore[misc]
        for plan in ("sequential", "ring", "downpour", "one_f_one_b", "ddp")
    },
}


@pytest.mark.parametrize("user", USERS)
def test_a_processor_that_does_not_keep_the_order_of_stores_is_refused(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(MachineError, match=r"has a aarch64 processor, not an x86-64.*engine='virtual'"):
        USERS[user]()


def test_what_is_refused_leaves_no_folder_and_the_virtual_engine_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(MachineError, match="riscv64"):
        pl.train(JOBS["mlp"](), "ring", folder=tmp_path)
    assert not list(tmp_path.iterdir())
    assert pl.train(JOBS["mlp"](), "ring", engine="virtual", folder=None, max_updates=1).summary()["updates"] == 1


def test_the_backend_asks_in_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert group.unfit() == ""
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    assert group.unfit() == "has a ppc64le processor, not an x86-64"


def test_an_x86_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    require_store_order("this test")
