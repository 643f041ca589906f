"""The same training on several nodes as on one machine, and what is refused before it begins."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.errors import PlanError, UsageError
from paceline.plans.plan import RECIPES, Plan
from paceline.runtime.engines import cluster
from paceline.runtime.engines.cluster import head_node, rendezvous
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.replay.replay import replay
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK
from paceline.runtime.links.tcp.frame import LIMITS
from paceline.runtime.links.tcp.waiting import TIMING
from paceline.runtime.runs.record import read_record
from tests.runtime.engines.cluster.held import Net, job
from tests.runtime.engines.cluster.nodes import SCRIPT, free_port, nodes, told
from tests.scripts import finish, start


def _same_bits(folder: Path, count: int, plans: list[str]) -> None:
    ranks = [told(each) for each in nodes(folder, count, plans).end()]
    torch.set_num_threads(1)
    for number, plan in enumerate(plans):
        here = pl.train(job(folder), plan, workers=count, engine="virtual", folder=None).summary()
        found = [rank[number]["summary"] for rank in ranks]
        assert {each["parameters_sha256"] for each in found} == {here["parameters_sha256"]}, plan
        assert found[0]["engine"] == "cluster"
        assert {each: found[0][each] for each in ("samples", "updates", "test_loss", "deaths")} == {
            each: here[each] for each in ("samples", "updates", "test_loss", "deaths")
        }


def test_the_same_bits_as_on_one_machine(tmp_path: Path) -> None:
    coded = [
        "ring:codec=threshold:0.01",
        "diloco:every=3,codec=int8",
        "diloco:every=4,fragments=3",
        "diloco:every=4,overlap=3",
    ]
    _same_bits(tmp_path, 3, ["ring", "local_sgd:every=3", "gossip", *coded])


@pytest.mark.parametrize("plan", ["downpour:shards=2,codec=threshold:0.01,pull=int8", "dc_asgd:codec=int8"])
def test_servers_on_other_nodes_read_coded_gradients(tmp_path: Path, plan: str) -> None:
    """What each server applied is computed again from the pushes alone: the same bits."""
    ranks = [told(each) for each in nodes(tmp_path, 2, [plan]).end()]
    (folder,) = (tmp_path / "runs").iterdir()
    assert replay(folder).parameters_sha256 == ranks[0][0]["summary"]["parameters_sha256"]


@pytest.mark.soak
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_same_bits_under_every_plan(tmp_path: Path, count: int) -> None:
    plans = ["ring", "tree", "central", "parallel_sgd", "easgd:every=2", "diloco:every=4", "gossip:graph=complete"]
    _same_bits(tmp_path, count, plans + (["halving_doubling", "hierarchical"] if count % 2 == 0 else []))


def test_nodes_that_would_train_different_things_are_all_refused(tmp_path: Path) -> None:
    seed = '{"seed": int(os.environ["PACELINE_RANK"]) // 2}'
    text = "import os\n" + SCRIPT.replace('options.pop("job", {})', seed)
    ended = nodes(tmp_path, 3, ["ring"], text).end()
    assert [each.code for each in ended] == [1, 1, 1]  # an exception of the script
    for each in ended:
        assert "rank 2 has seed=1, and rank 0 has seed=0: start all nodes with the same command" in each.err


def test_nodes_whose_models_start_from_other_numbers_take_those_of_rank_0(tmp_path: Path) -> None:
    """A module that a job file makes without a seed differs from process to process."""
    seeded = (
        "from tests.runtime.engines.cluster.held import Net\n\n\ndef seeded():\n"
        '    torch.manual_seed(int(os.environ["PACELINE_RANK"]))\n    return {"model": Net(str(folder))}\n\n\n'
    )
    text = "import os\n" + SCRIPT.replace("found = []", seeded + "found = []").replace(
        'options.pop("job", {})', "seeded()"
    )
    ranks = [told(each) for each in nodes(tmp_path, 3, ["ring", "downpour"], text).end()]
    ring, downpour = ({rank[plan]["summary"]["parameters_sha256"] for rank in ranks} for plan in range(2))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    here = pl.train(job(tmp_path, model=Net(str(tmp_path))), "ring", workers=3, engine="virtual", folder=None)
    assert ring == {here.summary()["parameters_sha256"]}
    assert len(downpour) == 1
    assert all(replay(folder).matches for folder in (tmp_path / "runs").iterdir())


def test_a_node_with_another_model_is_refused(tmp_path: Path) -> None:
    other = '{"model": [nn.Linear(12, 5), nn.Sequential(nn.Linear(12, 5))][int(os.environ["PACELINE_RANK"])].double()}'
    text = "import os\nfrom torch import nn\n" + SCRIPT.replace('options.pop("job", {})', other)
    for each in nodes(tmp_path, 2, ["ring"], text).end():
        assert each.code == 1  # an exception of the script
        assert "rank 1 has another model than rank 0: start all nodes with the same command" in each.err


def test_a_second_node_of_a_rank_is_refused_and_the_run_continues(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    launcher = {"WORLD_SIZE": "2", "PACELINE_HEAD": f"127.0.0.1:{free_port()}"}
    ran = nodes(tmp_path, 2, ["downpour"], launcher=launcher)
    ran.held(2)
    (second,) = finish([start(tmp_path / "node.py", '{"plans": ["downpour"]}', name="second", RANK="1", **launcher)])
    assert second.code == 1
    assert "RunOver: a second node says that it is rank 1, and the first is connected" in second.err
    ran.release()
    for each in ran.end():
        assert told(each)[0]["summary"]["deaths"] == []
        assert "is gone" not in each.err


def test_each_job_of_mpich_is_another_run() -> None:
    """The process that serves the ranks of a job made the sockets that they got."""
    server, rank = socket.socketpair()
    with server, rank:
        ranks = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_FD": str(rank.fileno())}
        named, again, unnamed = (cluster.roster(each) for each in (ranks, ranks, ranks | {"PMI_FD": "-1"}))
    assert named == again
    assert named.meeting != unnamed.meeting


def test_ray_is_refused_where_torchrun_has_started_several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"torchrun has started 2 processes.* without torchrun"):
        pl.train(job(tmp_path), "downpour", workers=2, engine="ray", folder=None)
    cluster.refuse_torchrun({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"})
    cluster.refuse_torchrun({})


def test_an_interrupt_of_rank_0_is_told_as_such() -> None:
    assert head_node._exit_notice(KeyboardInterrupt()) == ("the run has ended: rank 0 was interrupted", 130)
    assert head_node._exit_notice(ValueError("one\ntwo")) == ("the run has ended: one", 1)
    assert head_node._exit_notice(ValueError()) == ("the run has ended: ValueError", 1)


def test_a_node_that_does_not_come_is_named(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, 3, ["ring"], started=2, deadline=3.0).end()
    assert "RunFailed: rank 2 has not come to 127.0.0.1:" in first.err
    assert "RunOver: rank 2 has not come to 127.0.0.1:" in second.err


ON_A_CLUSTER = (
    "ring",
    "tree",
    "halving_doubling",
    "hierarchical",
    "central",
    "local_sgd",
    "parallel_sgd",
    "easgd",
    "diloco",
    "gossip",
    "downpour",
    "ssp",
    "dc_asgd",
    "gap_aware",
    "backup",
)
ROSTER = Roster(0, 2, Address("127.0.0.1", 1), 0, "torchrun", b"", LOOPBACK)


def test_an_agent_that_ray_has_started_later_wins_whatever_the_clock_of_its_machine_says() -> None:
    found = []
    for attempt in (1, 2):
        roster = replace(ROSTER, rank=1, head_rank=2, launcher="ray", attempt=attempt)
        _, hub, pump = rendezvous.open_hub(roster, TIMING, LIMITS, deadline=1.0)
        found.append(hub.me.peer)
        hub.close()
        pump.close()
    assert [peer.incarnation for peer in found] == [1, 2]


def test_every_plan_runs_or_is_refused_with_a_reason() -> None:
    for name in set(RECIPES) - {"table"}:
        plan = Plan.parse(name, 4 if name == "cannon" else 2)
        if name in ON_A_CLUSTER:
            cluster.check(plan, ROSTER)
        else:
            with pytest.raises(PlanError, match=f"plan {name} does not run on a cluster: .*; .*"):
                cluster.check(plan, ROSTER)


def test_as_many_workers_as_nodes() -> None:
    with pytest.raises(PlanError, match="plan ring:workers=4 has 4 workers, and torchrun has started 2 nodes"):
        cluster.check(Plan.parse("ring:workers=4"), ROSTER)


def test_without_a_launcher_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "PACELINE_RANK", "PACELINE_NODES", "PACELINE_HEAD"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="start it by torchrun, srun or mpiexec, or set PACELINE_RANK"):
        pl.train(job(tmp_path), "ring", engine="cluster")


def test_a_workers_exception_ends_every_node(tmp_path: Path) -> None:
    text = SCRIPT.replace("import torch\n", "import torch\nfrom torch import nn\n", 1).replace(
        "found = []",
        """
class Fails(nn.CrossEntropyLoss):
    calls = 0

    def forward(self, x, y):
        Fails.calls += 1
        if Fails.calls > 20:
            raise ValueError("nine is not a class")
        return super().forward(x, y)

found = []
options["job"] = {"loss": Fails()}
""",
    )
    ended = nodes(tmp_path, 2, ["ring"], text).end()
    assert [each.code for each in ended] == [1, 1]
    assert "failed first: ValueError: nine is not a class" in ended[0].err
    assert "raise ValueError" in ended[0].err
    assert "RunOver: the run has ended: worker" in ended[1].err
    (run,) = (tmp_path / "runs").iterdir()
    failure = read_record(run).failure
    assert failure is not None
    assert failure.what == "failed first: ValueError: nine is not a class"


def test_what_an_optimizer_raises_at_a_server_ends_every_node(tmp_path: Path) -> None:
    text = SCRIPT.replace(
        "found = []",
        """
class Fails(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        Fails.calls += 1
        if Fails.calls > 20:
            raise ValueError("twenty steps are enough")
        return super().step(closure)

found = []
options["job"] = {"optimizer": lambda parameters: Fails(parameters, lr=0.1)}
""",
    )
    ended = nodes(tmp_path, 2, ["downpour"], text, checkpoint_every=100).end()
    (run,) = (tmp_path / "runs").iterdir()
    assert [each.code for each in ended] == [1, 1]
    assert f"\n  resume  paceline train --resume {run} " in ended[0].err
    assert "failed: ValueError: twenty steps are enough" in ended[0].err
    assert "raise ValueError" in ended[0].err
    assert "RunOver: the run has ended: server" in ended[1].err


def test_the_command_speaks_on_rank_0_alone(tmp_path: Path) -> None:
    text = """
import sys
from pathlib import Path
from paceline.interfaces.cli import main
from tests.runtime.engines.cluster.held import Net, job as made

job = made(Path(__file__).parent)
if __name__ == "__main__":
    sys.argv[1:] = ["train", __file__, "--plan", "ring", "--max-updates", "20", "--json", "--quiet"]
    main()
"""
    first, second = nodes(tmp_path, 2, [], text).end()
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.out.count("\n") == 1
    assert '"engine": "cluster"' in first.out
    assert (second.out, second.err) == ("", "")
