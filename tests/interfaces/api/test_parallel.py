"""A user's own loop under every plan that allows one, in real processes, started as torchrun starts them."""

from __future__ import annotations

import os
import signal
import socket
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.errors import PlanError, UsageError
from paceline.runtime.runs.record import read_record
from tests.scripts import Ended, world

# Every rank computes its share under the plan in plain PyTorch.
LOOP = """
import os, sys, torch
from functools import partial
from torch import nn
import paceline as pl
from paceline.algorithms.agenda import Agenda
from paceline.training.data.source import Order

RANK, RANKS, UPDATES, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 24, 32
chance = torch.Generator().manual_seed(0)
x = torch.randn(256, 6, generator=chance, dtype=torch.float64)
y = (x.sum(1) > 0).long()

def network():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).double()

sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
loss_function = nn.CrossEntropyLoss()
agenda, order = Agenda(256, SIZE, 3, parts=RANKS), Order(256, 0, True)

def batches():
    for update in range(UPDATES):
        for chunk in agenda.mine(update, RANK):
            which = order.indices(chunk)
            yield x[which], y[which]

def train(plan, model, optimizer, **more):
    with pl.parallel(model, optimizer, plan, **more) as (model, optimizer):
        for inputs, target in batches():
            optimizer.zero_grad()
            loss_function(model(inputs), target).backward()
            optimizer.step()
    return model
"""


def run(folder: Path, ranks: int, body: str, *args: object) -> list[Ended]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = folder / "script.py"
    script.write_text(LOOP + textwrap.dedent(body))
    return world(script, ranks, *args, port=port)


SYNCHRONOUS = [
    "ring",
    "tree",
    "halving_doubling",
    "hierarchical:groups=1",
    "central",
    "local_sgd:every=5",
    "parallel_sgd",
    "easgd:every=4",
    "diloco:every=6",
    "gossip",
]
ASYNCHRONOUS = [
    "downpour:shards=2",
    "ssp:bound=1",
    "dc_asgd",
    "hogwild",
    "easgd:mode=asynchronous,every=5",
    "diloco:mode=asynchronous,every=5",
    "gossip:mode=asynchronous",
]


def test_ranks_that_read_the_same_batches_are_told(tmp_path: Path) -> None:
    body = """
        torch.manual_seed(7)
        model = network()
        train("downpour", model, sgd(model.parameters()))  # each has its own
        print("alone", file=sys.stderr)
        RANK = 0
        train("ring", model, sgd(model.parameters()))
        """
    ended = run(tmp_path, 2, body)
    assert [each.code for each in ended] == [0, 0], ended
    own, same = ended[1].err.split("alone")
    assert "the same gradient" not in own + ended[0].err
    assert "ranks 0 and 1 began with the same gradient" in same


def test_a_loop_of_ones_own_makes_the_bits_that_train_makes(tmp_path: Path) -> None:
    """Synchronous plans, two processes, batch normalisation included."""
    ended = run(
        tmp_path,
        2,
        """
        for number, plan in enumerate(sys.argv[2:]):
            torch.manual_seed(7)
            model = network() if RANK == 0 else network().requires_grad_()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(RANK)  # everyone starts from rank 0's
            model = train(plan, model, sgd(model.parameters()))
            torch.save(model.state_dict(), f"{sys.argv[1]}/{number}-{RANK}.pt")
        """,
        tmp_path,
        *SYNCHRONOUS,
    )
    assert [each.code for each in ended] == [0, 0], ended
    space: dict[str, object] = {}
    os.environ.update({"RANK": "0", "WORLD_SIZE": "2"})
    try:
        exec(LOOP, space)
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    torch.manual_seed(7)
    job = pl.Job(
        model=space["network"](),
        data=(space["x"], space["y"]),
        loss=space["loss_function"],
        optimizer=space["sgd"],  # type: ignore
        batch_size=32,
        epochs=3,
    )
    for number, plan in enumerate(SYNCHRONOUS):
        expected = pl.train(job, plan, workers=2, folder=None, max_updates=24).model.state_dict()
        for rank in range(2):
            found = torch.load(tmp_path / f"{number}-{rank}.pt")
            for name, value in expected.items():
                assert torch.equal(found[name], value), (plan, rank, name)


def test_asynchronous_plans_end_with_one_model_and_lose_no_step(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        2,
        """
        import hashlib
        for plan in sys.argv[2:]:
            torch.manual_seed(RANK)
            model = network()
            optimizer = sgd(model.parameters())
            train(plan, model, optimizer, folder=sys.argv[1])
            digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
            print(plan, digest, len(optimizer.state))
        """,
        tmp_path / "runs",
        *ASYNCHRONOUS,
    )
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[0].out == ended[1].out
    for line in ended[0].out.splitlines():
        assert line.endswith(" 6"), f"the optimizer's memory came back: {line}"
    records = [read_record(path) for path in sorted((tmp_path / "runs").iterdir())]
    assert len(records) == len(ASYNCHRONOUS)
    assert all(r.status == "done" and r.summary.updates == 48 for r in records), records
    assert not list((tmp_path / "runs").glob("*/trace-*.npy"))


def test_the_optimizer_goes_on_with_what_it_remembers_and_follows_its_schedule(tmp_path: Path) -> None:
    """One process under a plan with a server equals plain PyTorch, even if the optimizer is changed meanwhile."""
    (ended,) = run(
        tmp_path,
        1,
        """
        import warnings
        warnings.simplefilter("error")
        def parts():
            torch.manual_seed(1)
            model = network()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))
        def go(model, optimizer, schedule):
            for inputs, target in batches():
                def closure():
                    optimizer.zero_grad()
                    loss = loss_function(model(inputs), target)
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    return loss
                assert optimizer.step(closure) is not None
                schedule.step()
        plain = parts()
        go(*plain), go(*plain)
        ours = parts()
        go(*ours)
        before = vars(ours[1])["step"]
        with pl.parallel(*ours[:2], "downpour"):
            go(*ours)
        assert vars(ours[1])["step"] is before
        for a, b in zip(plain[0].state_dict().values(), ours[0].state_dict().values()):
            assert torch.equal(a, b)
        for a, b in zip(plain[1].state_dict()["state"].values(), ours[1].state_dict()["state"].values()):
            assert all(torch.equal(a[key], b[key]) for key in a)
        print("the same")
        """,
    )
    assert ended.code == 0, ended.err
    assert "the same" in ended.out


def test_the_state_of_an_optimizer_within_a_block_is_that_of_the_plan(tmp_path: Path) -> None:
    """At a server the state lies in shared memory, and a checkpoint of the loop held none of it."""
    ended = run(
        tmp_path,
        2,
        """
        from paceline.errors import UsageError
        for plan in sys.argv[1:]:
            torch.manual_seed(RANK)
            model = network()
            optimizer = torch.optim.Adam(model.parameters())
            with pl.parallel(model, optimizer, plan):
                for inputs, target in batches():
                    loss_function(model(inputs), target).backward()
                    optimizer.step()
                within = optimizer.state_dict()["state"]
                assert sorted(within) == list(range(6)), (plan, within.keys())
                assert all(state["exp_avg_sq"].sum() > 0 and state["step"] > 0 for state in within.values()), plan
                for wrong in (lambda: optimizer.add_param_group({"params": []}),
                              lambda: optimizer.load_state_dict(optimizer.state_dict())):
                    try:
                        wrong()
                        said = ""
                    except UsageError as error:
                        said = str(error)
                    own = plan.startswith(("ring", "hogwild", "gossip"))  # each rank's state is its own
                    assert "before the block" in said or (own and not said), (plan, said)
            after = optimizer.state_dict()["state"]
            assert all(after[n]["step"] >= within[n]["step"] for n in within), plan
            assert not {"state_dict", "load_state_dict", "add_param_group", "step"} & vars(optimizer).keys()
        print("the same")
        """,
        "ring",
        *ASYNCHRONOUS,
    )
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    assert "the same" in ended[0].out


FAULTS = """
class Leaves(Exception):
    pass

model = network()
plan, fault = sys.argv[1:]
with pl.parallel(model, sgd(model.parameters()), plan, deadline=100) as (model, optimizer):
    for number, (inputs, target) in enumerate(list(batches()) * 5):
        if RANK == 1 and number == 30:
            if fault == "raises":
                raise Leaves("on purpose")
            if fault == "is killed":
                os.kill(os.getpid(), 9)
            if fault == "leaves early":
                break
        optimizer.zero_grad()
        loss_function(model(inputs), target).backward()
        optimizer.step()
print("went on to the end")
"""


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "worker 1 has left with an exception in its step 31"),
        ("is killed", "of worker 1 has ended in its step 31"),
        ("leaves early", "worker 1 has left the block after 30 steps. Under plan ring all make as many steps"),
    ],
)
def test_a_synchronous_loop_ends_at_once_and_names_who_is_missing(tmp_path: Path, fault: str, says: str) -> None:
    waits, faulty = run(tmp_path, 2, FAULTS, "ring", fault)
    assert waits.code == 1
    assert says in waits.err, waits.err  # and not that it waited until the deadline
    assert faulty.code == {"raises": 1, "is killed": -signal.SIGKILL, "leaves early": 1}[fault], faulty.err


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        ("downpour", "is killed"),
        ("ssp:bound=0", "is killed"),
        ("ssp:bound=0", "leaves early"),
        ("gossip:mode=asynchronous", "raises"),
    ],
)
def test_an_asynchronous_loop_goes_on_without_the_missing(tmp_path: Path, plan: str, fault: str) -> None:
    goes_on, _ = run(tmp_path, 2, FAULTS, plan, fault)
    assert goes_on.code == 0, goes_on.err
    assert "went on to the end" in goes_on.out


def test_what_cannot_be_is_refused_before_anything_is_shared(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def enter(plan: str, module: torch.nn.Module = model) -> None:
        with pl.parallel(module, optimizer, plan):
            raise AssertionError("it was let in")

    elsewhere = ("ddp", "sandblaster", "backup", "parallel_sgd:mode=map_reduce")
    for plan in (*elsewhere, "ring:sizes=1", "ring:canonical=2", "downpour:chunks=2"):
        with pytest.raises(PlanError, match=plan.partition(":")[0]):
            enter(plan)
    with pytest.raises(PlanError, match="did you mean 'downpour'"):
        enter("downpuor")
    with pytest.raises(PlanError, match="for 3 workers, but there are 1 processes"):
        enter("ring:workers=3")
    with pytest.raises(PlanError, match="sparse gradient"):
        enter("ring", torch.nn.Embedding(5, 2, sparse=True))
    assert "step" not in vars(optimizer)
    ended = run(
        tmp_path,
        2,
        """
        model = nn.Linear(6, 2 + RANK)
        with pl.parallel(model, sgd(model.parameters()), "ring", deadline=5):
            pass
        """,
    )
    for each in ended:
        assert each.code == 1
        assert "rank 0 has another model than rank 1: rank 0 has weight [2, 6]" in each.err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"plan": "ring:workers=3"}, "for 3 workers"),
        ({"plan": "gpipe"}, "gpipe"),
        ({"timeout": 0}, "timeout=0"),
        ({"folder": 3}, "folder=3"),
        ({"model": torch.nn.Linear}, "model="),
        ({"optimizer": "sgd"}, "optimizer='sgd'"),
        ({"optimizer": torch.optim.LBFGS([torch.zeros(1)])}, "LBFGS evaluates the loss several times in a step, by a"),
        ({"model": torch.nn.Embedding(5, 2, sparse=True)}, "sparse gradient"),
    ],
)
def test_a_wrong_argument_is_refused_by_the_call_before_the_block_is_entered(given: dict[str, Any], says: str) -> None:
    model = torch.nn.Linear(2, 2)
    right = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "plan": "ring"}
    with pytest.raises(UsageError, match=says):
        pl.parallel(**{**right, **given})


def test_processes_that_torchrun_did_not_start_find_each_other_where_their_group_did(tmp_path: Path) -> None:
    """Processes of torch.multiprocessing.spawn have no environment variable for the number of ranks."""
    ended = run(
        tmp_path,
        2,
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        del os.environ["WORLD_SIZE"], os.environ["RANK"]
        torch.manual_seed(RANK)
        model = network()
        train("ring", model, sgd(model.parameters()))
        print(model[0].weight.sum().item())
        """,
    )
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[0].out == ended[1].out


def test_several_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    model = torch.nn.Linear(2, 2)
    with (
        pytest.raises(UsageError, match="4 processes on several machines"),
        pl.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring"),
    ):
        pass
