"""Codecs on every engine: the same bits, exact bytes, nothing lost over a death and a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline as pl
from paceline.algorithms.codecs.catalogue import CODECS
from paceline.errors import PlanError
from paceline.interfaces.testing.conformance import check_run, difference, replays
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan

#: A member of each kind: added up, gathered, of varying length, with chance, with a memory.
KINDS = ("half", "int8", "threshold:0.01", "qsgd", "powersgd:1", "randomk:0.2")


def trained(plan: str, engine: str, updates: int = 12) -> pl.Run:
    return pl.train(JOBS["mlp"](), plan, engine=engine, folder=None, max_updates=updates)


RING, DILOCO = "ring:workers=3", "diloco:workers=3,every=3"


@pytest.mark.parametrize(
    ("dense", "codec"),
    [  # test_fragments has every codec with diloco
        pytest.param(dense, codec, marks=[] if dense == RING or codec in KINDS else [pytest.mark.soak])
        for dense in (RING, DILOCO)
        for codec in CODECS
    ],
)
def test_every_engine_and_replay_have_the_same_bits(dense: str, codec: str) -> None:
    plan = f"{dense},codec={codec}"
    runs = [trained(plan, engine) for engine in ("virtual", "local")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1
    check_run(runs[1], Plan.parse(plan))
    assert 1e-7 < difference(trained(dense, "virtual").model, runs[0].model) < 0.9


@pytest.mark.parametrize("codec", KINDS)
def test_servers_read_what_workers_write(codec: str) -> None:
    plan = f"downpour:workers=1,shards=2,codec={codec}"
    runs = [trained(plan, engine) for engine in ("virtual", "local")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1
    together = trained(f"downpour:workers=3,codec={codec}", "local")
    replays(together)


@pytest.mark.parametrize(
    ("table", "codec"),
    [  # each with one of the others
        pytest.param(table, codec, marks=[] if (row + number) % 3 == 0 else [pytest.mark.soak])
        for row, table in enumerate(("tree", "halving_doubling", "central", "hierarchical:groups=2"))
        for number, codec in enumerate(("half", "randomk:0.2", "powersgd:1"))
    ],
)
def test_messages_that_add_up_take_every_table(table: str, codec: str) -> None:
    plan = f"{table}{',' if ':' in table else ':'}workers=4,codec={codec}"
    runs = [trained(plan, engine) for engine in ("virtual", "local")]
    assert len({run.summary()["parameters_sha256"] for run in runs}) == 1


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("tree:codec=int8", "cannot be summed on their way.*ring:codec=int8.*half and bfloat16"),
        ("backup:codec=half", "owed twice"),
        ("hogwild:codec=half", "nothing travels"),
        ("sandblaster:codec=half", "line search"),
        ("local_sgd:codec=half", "whole replicas; diloco:rate=1,momentum=0.*ring, tree"),
        ("easgd:codec=half", "not gradients.*ring, tree"),
        ("diloco:mode=asynchronous,codec=half", "whole replicas with the centre.*mode=synchronous"),
        ("ddp:codec=half", "hooks of its own"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(plan: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.parse(plan)


@pytest.mark.parametrize(
    "plan",
    ["ring:workers=2,codec=onebit", "downpour:workers=1,codec=powersgd:1", "diloco:workers=2,every=5,codec=onebit"],
)
def test_what_is_owed_survives_a_resume(plan: str, tmp_path: Path) -> None:
    """A run that was stopped at a checkpoint goes on with the bits of one that was not."""
    job = JOBS["mlp"]()
    whole = pl.train(job, plan, folder=tmp_path / "whole", checkpoint_every=4)
    part = pl.train(job.with_(epochs=1), plan, folder=tmp_path / "part", checkpoint_every=4)
    assert part.path is not None
    rest = pl.train(job, resume=part.path, epochs=job.epochs)
    assert rest.summary()["parameters_sha256"] == whole.summary()["parameters_sha256"]
    replays(rest)
