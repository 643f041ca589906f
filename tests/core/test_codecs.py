"""The seam for codecs: a lossy one, made up here, goes through every engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import paceline as pl
from paceline.core.codecs.dense import Dense
from paceline.engines.virtual import World, simulate
from paceline.plans.plan import Plan
from paceline.testing.conformance import difference
from paceline.testing.jobs import JOBS


@dataclass(frozen=True)
class Signs:
    """One bit a number and one scale, with error feedback."""

    def residual(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"owed": torch.zeros_like(parameter)}

    def encode(self, gradient: torch.Tensor, residual: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        wanted = residual["owed"].add_(gradient)
        message = wanted.sign(), wanted.abs().mean()
        residual["owed"] = wanted - self.decode(message)
        return message

    def decode(self, message: tuple[torch.Tensor, ...]) -> torch.Tensor:
        sign, scale = message
        return sign * scale

    def size(self, dense: float) -> float:
        return dense / 32


def signs(plan: str) -> Plan:
    return replace(Plan.parse(plan), codec=Signs())


@pytest.mark.parametrize("plan", ["ring:workers=2", "downpour:workers=1"])
def test_a_lossy_codec_gives_the_same_bits_on_every_engine(plan: str) -> None:
    made = JOBS["mlp"]()
    runs = [pl.train(made, signs(plan), engine=engine, folder=None) for engine in ("virtual", "local")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1
    dense = pl.train(made, plan, engine="virtual", folder=None)
    assert 1e-6 < difference(dense.model, runs[0].model) < 0.5


def test_replicas_that_have_moved_do_not_go_through_it() -> None:
    made = JOBS["mlp"]()
    runs = [pl.train(made, plan, 2, engine="virtual", folder=None) for plan in (signs("local_sgd"), "local_sgd")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1


@pytest.mark.parametrize("plan", ["ring:workers=4", "downpour:workers=4"])
def test_the_wire_carries_what_the_codec_says(plan: str) -> None:
    world, chosen = World(bandwidth=1e6), Plan.parse(plan)
    traces = [simulate(p, p.agenda(4000, 100), world, 320_000) for p in (chosen, signs(plan))]
    dense, thin = (trace.rows["bytes"].sum() for trace in traces)
    assert thin == pytest.approx(dense / 32, rel=1e-3)
    assert np.ptp(traces[1].rows["end"]) < np.ptp(traces[0].rows["end"])


def test_dense_is_nothing_at_all() -> None:
    gradient = torch.randn(3)
    assert Dense().decode(Dense().encode(gradient, {})) is gradient
