"""Nodes that Ray places: whole runs, and processes that are killed. One cluster of Ray serves all tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import paceline as pl
from paceline.errors import DeathWarning, MachineError, PlanError, RunFailed, RunStopped, SecurityError, UsageError
from paceline.runtime.engines.cluster import ray_session
from paceline.runtime.engines.cluster.ray_nodes import alternating, answers, has_ended
from paceline.runtime.engines.ray_actor import Machine
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.runs.trace import Kind
from tests.runtime.engines.cluster.held import Net, job

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'paceline[ray]'")
pytestmark = [
    pytest.mark.soak,  # Ray alone takes up to half a minute to start
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]
AUTO, ELSEWHERE = pl.NodeOptions(address="auto"), pl.NodeOptions(address="127.0.0.1:9")
TRUSTED = pl.NodeOptions(address="auto", trusted_network=True)
DEADLINE = 300.0  # seconds that a wait of a run may take on a busy machine
REPO = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ray_session.RaySession]:
    """A cluster of four CPUs that this process is connected to, as a user's program may be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPO / "src"), str(REPO)]))
        try:
            with ray_session.session(None, 4, 0) as found:
                yield found
        except MachineError as error:
            pytest.skip(str(error))
    assert not _agents()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Ray's own processes outlast a test; no agent of a run, and nothing that one has started, may."""
    torch.set_num_threads(1)
    Net.passes = 0  # this process has made some for the test before
    yield
    until = time.monotonic() + 60
    while (left := _agents()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("paceline-child")]


def _agents() -> list[psutil.Process]:
    """Return the agents that run: Ray names their processes after the method that they are in."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if each.cmdline()[:1] and each.cmdline()[0].startswith("ray::RayAgent"):
                found.append(each)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return sorted(found, key=lambda each: each.pid)


def _train(
    folder: Path, plan: str, meanwhile: Callable[[], None] | None = None, epochs: int = 3, **options: Any
) -> pl.Run:
    """Train on the cluster; once every worker is held at its step, do something, and let them go on."""
    if meanwhile is not None:
        (folder / "hold").touch()
    ended = threading.Event()
    helper = threading.Thread(target=_meanwhile, args=(folder, meanwhile, ended), name="meanwhile")
    helper.start()
    try:
        return pl.train(
            job(folder, test=None, epochs=epochs),
            plan,
            engine="ray",
            nodes=TRUSTED,
            folder=folder / "runs",
            timeout=DEADLINE,
            **options,
        )
    finally:
        ended.set()
        helper.join()


def _meanwhile(folder: Path, do: Callable[[], None] | None, ended: threading.Event) -> None:
    if do is None:
        return
    while len(list(folder.glob("held-*"))) < 2 and not ended.wait(0.01):
        pass
    if not ended.is_set():
        do()
        (folder / "hold").unlink()


@contextmanager
def _told() -> Iterator[list[str]]:
    """Collect what a run warns of."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeathWarning)
        yield lines
    lines += [str(each.message) for each in caught]


def _held(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("held-")) for path in folder.glob("held-*")]


@pytest.fixture(autouse=True)
def _trusts_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether anyone may connect costs a process that imports Ray; one test asks it."""
    monkeypatch.setattr(ray_session, "refuse_open", lambda head: None)


def _applied_once(run: pl.Run) -> None:
    """Every batch is in every shard of the result exactly once."""
    rows = run.trace.of_kind(Kind.APPLY)
    pushes = list(zip(rows["shard"].tolist(), rows["update"].tolist(), strict=True))
    assert len(set(pushes)) == len(pushes)
    assert {update for _, update in pushes} == set(range(max(update for _, update in pushes) + 1))


def test_ring_computes_what_the_local_engine_does(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    ran = _train(tmp_path, "ring", workers=2)
    local = pl.train(job(tmp_path, test=None), "ring", workers=2, folder=None)
    assert ran.record.engine == "ray"
    assert ran.summary()["parameters_sha256"] == local.summary()["parameters_sha256"]


def test_a_run_that_was_stopped_is_resumed_on_ray(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    """SIGTERM to the driver writes a checkpoint, from which the run goes on to the same bits."""
    with pytest.raises(RunStopped, match="stopped after"):
        _train(tmp_path, "ring", lambda: os.kill(os.getpid(), signal.SIGTERM), workers=2, checkpoint_every=0)
    (run,) = (tmp_path / "runs").iterdir()
    resumed = pl.train(resume=run, engine="ray", nodes=TRUSTED, timeout=DEADLINE)
    assert resumed.record.engine == "ray"
    local = pl.train(job(tmp_path, test=None), "ring", workers=2, folder=None)
    assert resumed.summary()["parameters_sha256"] == local.summary()["parameters_sha256"]
    with pytest.raises(PlanError, match="plan downpour keeps no checkpoints: on a cluster"):
        _train(tmp_path, "downpour", workers=2, checkpoint_every=5)


def test_a_killed_worker_and_a_killed_server_are_replaced(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    def kill() -> None:
        worker = _held(tmp_path)[0]
        server = next(pid for pid in _children_of_agents() if pid not in _held(tmp_path))
        for each in (worker, server):
            os.kill(each, signal.SIGKILL)

    with _told() as told:
        run = _train(tmp_path, "downpour:shards=2", kill, workers=2)
    assert any("another one is started in its place" in line for line in told)
    _applied_once(run)
    assert len(run.trace.of_kind(Kind.DEATH)) == 1
    assert pl.replay(run).matches


def _children_of_agents() -> list[int]:
    """Return the workers and servers of all agents: they are children of the agents' forkservers."""
    found = []
    for agent in _agents():
        for helper in agent.children():
            if "forkserver" in " ".join(helper.cmdline()):
                found += [each.pid for each in helper.children()]
    return found


@pytest.mark.soak
def test_ray_replaces_a_killed_agent_which_takes_part(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    """The run goes on until the worker of the agent that Ray has started again has pushed."""
    before: list[int] = []

    def kill() -> None:
        before.extend(each.pid for each in _agents())
        os.kill(before[0], signal.SIGKILL)
        until = time.monotonic() + DEADLINE
        while not [pid for pid in _new(before) if psutil.Process(pid).children()]:
            assert time.monotonic() < until
            time.sleep(0.05)
        while len(_held(tmp_path)) < 3:  # the worker of the replacement has stopped at its step as well
            assert time.monotonic() < until
            time.sleep(0.05)

    with _told() as told:
        run = _train(tmp_path, "downpour:shards=2", kill, epochs=8, workers=2)
    assert any("until another takes its place" in line for line in told)
    _applied_once(run)
    assert set(run.trace.of_kind(Kind.COMPUTE)["worker"].tolist()) == {0, 1}


def _new(before: list[int]) -> list[int]:
    return [each.pid for each in _agents() if each.pid not in before]


@pytest.mark.soak
def test_survivors_of_a_plan_in_step_go_on(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    with _told() as told:
        run = _train(tmp_path, "ring", lambda: os.kill(_agents()[0].pid, signal.SIGKILL), workers=2)
    assert any("compute its part of each batch" in line for line in told)
    oracle = pl.train(job(tmp_path, test=None), "ring", workers=2, engine="virtual", folder=None)
    for name, value in oracle.model.state_dict().items():
        assert torch.allclose(run.model.state_dict()[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.soak
def test_functions_of_the_program_and_keys_travel(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    lambdas = pl.Job(
        model=lambda: torch.nn.Linear(3, 1),
        data=(x, x[:, :1]),
        loss=lambda a, b: ((a - b) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    run = pl.train(lambdas, "ring", workers=2, engine="ray", nodes=AUTO, folder=None, timeout=DEADLINE)
    local = pl.train(lambdas, "ring", workers=2, folder=None)
    assert run.summary()["parameters_sha256"] == local.summary()["parameters_sha256"]


def test_what_cannot_be_is_refused(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"connected to the Ray cluster at .* already: give address='auto'"):
        pl.train(job(tmp_path), "ring", workers=2, engine="ray", folder=None)
    with pytest.raises(UsageError, match="is another one"):
        pl.train(job(tmp_path), "ring", workers=2, engine="ray", nodes=ELSEWHERE, folder=None)
    with pytest.raises(PlanError, match="hogwild does not run on a cluster"):
        pl.train(job(tmp_path), "hogwild", workers=2, engine="ray", nodes=AUTO, folder=None)


@pytest.mark.soak
def test_more_workers_than_cpus_end_at_the_deadline(cluster: ray_session.RaySession, tmp_path: Path) -> None:
    with (
        pytest.warns(match="has 4 CPUs, and 64 workers need 64"),
        pytest.raises(RunFailed, match="give fewer workers"),
    ):
        pl.train(
            job(tmp_path, test=None),
            "downpour",
            workers=64,
            engine="ray",
            nodes=TRUSTED,
            folder=None,
            timeout=3.0,
        )


@pytest.mark.soak
def test_a_cluster_of_its_own_asks_for_a_token(cluster: ray_session.RaySession) -> None:
    assert not ray_session.accepts_anyone(cluster.head)


def test_an_open_head_is_refused_and_one_on_loopback_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(ray_session, "accepts_anyone", lambda head: True)
    ray_session.refuse_open(Address("127.0.0.1", 6379))
    with pytest.raises(SecurityError, match="RAY_AUTH_MODE=token"):
        ray_session.refuse_open(Address("192.0.2.1", 6379))


def test_without_ray_or_its_cluster_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs engine='ray'"):
        pl.train(job(tmp_path), "ring", workers=2, nodes=AUTO, folder=None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"there is no Ray cluster at 127\.0\.0\.1:9"):
        pl.train(job(tmp_path), "ring", workers=2, engine="ray", nodes=ELSEWHERE, folder=None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[ray\]'"):
        pl.train(job(tmp_path), "ring", workers=2, engine="ray", folder=None)


def test_a_machine_whose_raylet_has_ended_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        machine = Machine("ab", *raylet.getsockname())
        assert answers(machine)
        assert not has_ended(machine)
    assert not answers(machine)
    assert has_ended(machine)


@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_driver_whose_own_ray_is_killed_says_how_to_go_on_and_leaves_none_of_it(tmp_path: Path, part: str) -> None:
    """Ray ends a process at its next call without its raylet, silently; prints its state; and would live on itself."""
    program = tmp_path / "driver.py"
    program.write_text(
        "import sys\nfrom pathlib import Path\nimport paceline as pl\n"
        "from tests.runtime.engines.cluster.held import job\n"
        "folder = Path(sys.argv[1])\n"
        "pl.train(job(folder), 'downpour', 2, engine='ray', folder=folder / 'my runs', checkpoint_every=5)\n"
    )
    (tmp_path / "hold").write_text("checkpoint")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO / "src"), str(REPO)])}
    driver = psutil.Popen(
        [sys.executable, str(program), str(tmp_path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until = time.monotonic() + DEADLINE
    while not list(tmp_path.glob("held-*")):
        assert time.monotonic() < until, driver.poll()
        time.sleep(0.05)
    all_of_it = driver.children(recursive=True)
    (killed,) = [each for each in all_of_it if each.name() == part]
    killed.kill()
    printed, said = driver.communicate(timeout=DEADLINE)
    assert printed == b""
    (run,) = (tmp_path / "my runs").iterdir()
    assert driver.returncode == 1
    assert f"start Ray again, then the run\n  resume  paceline train --resume '{run}'" in said.decode()
    assert not psutil.wait_procs(all_of_it, timeout=10)[1]


def test_neighbours_are_on_different_machines() -> None:
    machines = ["a", "a", "a", "b", "b", "c"]
    order = [machines[index] for index in alternating(machines)]
    assert sorted(order) == machines
    assert order == ["a", "b", "c", "a", "b", "a"]
