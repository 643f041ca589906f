"""Trials on Ray: tasks of the user's cluster, each of which starts a worker and dials the driver.

Ray places the tasks and starts those again whose process or machine is lost; legs and reports do not pass through it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.errors import RunFailed, TuningError
from paceline.planning.tuner.trials import Objective
from paceline.planning.tuner.trials.peers import RankInfo, serve
from paceline.planning.tuner.trials.processes import Processes
from paceline.runtime.engines.cluster.ray_session import package, session
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.run_spec import make_run_keys, with_keys
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.credentials import LOOPBACK, Credentials, TrustedNetwork
from paceline.runtime.links.tcp.handshake import RUN_BYTES
from paceline.training.gradients.pickling import pack_program, unpack_program

PATIENCE = 60.0  # seconds in which a task has to reach the driver
SMALL = 64 << 20  # bytes that a cluster of its own has to hold


def on_ray(address: str | None, trusted: bool, workers: int | None, tune: Callable[[RankInfo], Any]) -> Any:
    """Tune with a worker in each of so many tasks; by default one for each CPU of the cluster."""
    meeting = secrets.token_bytes(RUN_BYTES)
    with session(address, workers or 1, SMALL) as where:
        ray = package()
        credentials: Credentials = TrustedNetwork(secrets.token_bytes(32)) if trusted and not where.own else LOOPBACK
        keys = {} if where.own or trusted else make_run_keys()
        tasks = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        roster = Roster(tasks, tasks, Address(where.host, 0), 0, "ray", meeting, credentials, head_rank=tasks)
        with with_keys(roster, keys) as placed:
            begun: list[Any] = []

            def listening(at: Address, objective: Objective) -> None:
                task = ray.remote(run_trials).options(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")
                job = ray.put(pack_program(objective))
                begun.extend(task.remote(job, replace(roster, rank=rank, head=at), keys) for rank in range(tasks))

            rank_info = RankInfo(0, "Ray", tasks, placed.head, placed.credentials, meeting, listening, works=False)
            try:
                return tune(rank_info)
            except TuningError as error:
                raise _explained(error, begun) from error


def run_trials(job: bytes, roster: Roster, keys: dict[str, bytes]) -> None:
    """Run trials for the driver until its search is over: what a task of Ray does."""
    objective: Objective = unpack_program(job)
    with with_keys(roster, keys) as placed:
        rank_info = RankInfo(1 + roster.rank, "Ray", roster.nodes, placed.head, placed.credentials, placed.meeting)
        serve(rank_info, lambda terms: Processes(objective, terms, 1, threads=1), PATIENCE)


def _explained(error: TuningError, tasks: list[Any]) -> TuningError:
    """Add what the first of the tasks that failed has said."""
    ray = package()
    ended, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0) if tasks else ([], [])
    for task in ended:
        try:
            ray.get(task)
        except (RunFailed, ray.exceptions.RayError) as why:
            return TuningError(f"{error}; a task of Ray: {str(why).strip().splitlines()[-1]}")
    return error
