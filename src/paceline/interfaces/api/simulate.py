"""`simulate`: a plan on machines that one does not have, in virtual time, with or without the real arithmetic."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.errors.arguments import check_arguments
from paceline.interfaces.api.lines import Say, to_stderr
from paceline.interfaces.api.planning.choose import cluster_of, facts_of, open_card
from paceline.interfaces.api.train import train
from paceline.planning.planner.card import Card
from paceline.planning.planner.choosing import micro
from paceline.planning.planner.cluster import Cluster, NodeGroup
from paceline.planning.planner.costs import Calibrated
from paceline.planning.planner.model_cost import cost_of
from paceline.planning.planner.simulating import run, spread_of
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind
from paceline.text_table import Listed, TextList
from paceline.training.jobs.job import Job

UPDATES = 100  # of each worker


@dataclass(frozen=True)
class Simulation(Listed):
    """What a simulated training comes to."""

    job: str
    plan: str
    workers: int
    updates: int
    #: Virtual seconds.
    seconds: float
    samples_per_second: float
    #: Mean, median and 95% quantile of the staleness of pushes, in updates.
    staleness: tuple[float, int, int]
    #: Share of the workers' time that is spent waiting.
    waiting: float
    deaths: int
    bytes: int
    #: Dollars, where prices are known.
    dollars: float | None = None
    #: The figures of the last evaluation, where gradients were computed.
    metrics: dict[str, float] | None = None

    @property
    def effective_batch(self) -> float:
        """Samples whose gradients come from the same parameters: those of the updates that are under way together."""
        return self.samples_per_second * self.seconds / max(1, self.updates) * (1 + self.staleness[0])

    def _listed(self) -> TextList:
        mean, median, most = self.staleness
        lines = {
            "plan": f"{self.plan}, {self.workers:,} workers, {self.updates:,} updates of {self.job}",
            "time": f"{micro(self.seconds)} on the virtual clock, {self.samples_per_second:,.0f} samples/s",
            "staleness": f"mean {mean:.1f}, median {median}, 95% {most} updates",
            "effective batch": f"{self.effective_batch:,.0f} samples",
            "waiting": f"{self.waiting:.1%} of the workers' time",
            "sent": f"{self.bytes / 1e6:,.1f} MB",
        }
        if self.deaths:
            lines["deaths"] = f"{self.deaths:,}"
        if self.dollars is not None:
            lines["price"] = f"${self.dollars:,.4f}"
        lines |= {name: f"{value:.4f}" for name, value in (self.metrics or {}).items()}
        return TextList(f"Simulation of {self.job}", lines)

    def as_dict(self) -> dict[str, Any]:
        """The simulation as `paceline simulate --json` prints it."""
        mean, median, most = self.staleness
        return {
            "job": self.job,
            "plan": self.plan,
            "workers": self.workers,
            "updates": self.updates,
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "staleness": {"mean": mean, "median": median, "p95": most},
            "effective_batch": self.effective_batch,
            "wait_fraction": self.waiting,
            "deaths": self.deaths,
            "bytes_sent": self.bytes,
            "dollars": self.dollars,
            "metrics": self.metrics,
        }


def simulate(
    job: Job,
    plan: str | Plan = "downpour",
    workers: int | None = None,
    cluster: str | Path | Cluster | None = None,
    *,
    max_updates: int | None = None,
    arithmetic: bool = False,
    seed: int = 0,
    card: str | Path | Card | None = None,
    say: Say = to_stderr,
) -> Simulation:
    """Simulate a training by a plan in a cluster.

    Args:
        job: The job.
        plan: A plan or its name.
        workers: The number of workers of a plan that does not state it.
        cluster: A cluster.toml. Default: as many machines like this one as there are workers.
        max_updates: Updates of all workers together. Default: 100 per worker, or 100 under a synchronous plan.
        arithmetic: Also compute the gradients, so that learning with this staleness is predicted. As slow as training.
    """
    check_arguments(simulate, locals())
    chosen = Plan.parse(plan, workers)
    if chosen.traits.local_only:
        raise UsageError(f"plan {chosen.name!r} {chosen.traits.local_only}, and cannot be simulated")
    if chosen.traits.divided and not arithmetic:
        raise UsageError(
            f"plan {chosen.name!r} is timed by how it divides the model: see `paceline choose`, or give --arithmetic"
        )
    facts, _ = facts_of(job)
    target_cluster = (
        cluster_of(cluster) if cluster is not None else Cluster((NodeGroup(open_card(card, say), chosen.workers),))
    )
    if chosen.workers > target_cluster.machines:
        raise UsageError(
            f"{chosen.workers} workers on {target_cluster.machines} nodes; give fewer workers, or a larger count"
        )
    count = max_updates or (UPDATES if chosen.traits.synchronous else UPDATES * chosen.workers)
    costs = Calibrated(target_cluster.card(), lambda samples: cost_of(job, samples))
    price = target_cluster.price(chosen.workers)
    if arithmetic:
        return _with_arithmetic(job, chosen, target_cluster, costs, count, facts.batch, price, seed)
    totals = run(chosen, costs, facts, target_cluster, count, seed)
    return Simulation(
        job.name,
        str(chosen),
        chosen.workers,
        count,
        totals.seconds,
        facts.batch * count / totals.seconds,
        (totals.mean_staleness, totals.quantile(0.5), totals.quantile(0.95)),
        totals.wait_share,
        totals.count[Kind.DEATH],
        totals.bytes,
        None if price is None else price * totals.seconds,
    )


def _with_arithmetic(
    job: Job, plan: Plan, cluster: Cluster, costs: Calibrated, updates: int, batch: int, price: float | None, seed: int
) -> Simulation:
    """Train on the virtual engine, in a world of this cluster."""
    samples = max(1, math.ceil(batch / (plan.parts if plan.traits.synchronous else 1)))
    compute = costs.compute(samples, 1, plan.threads).seconds / samples
    update = costs.update(1, plan.threads).seconds
    world: World = cluster.world(plan.workers, compute, update, 10 * updates * compute * samples, seed)
    world = replace(world, spread=spread_of(costs, plan.threads))
    epochs = -(-updates * batch // max(1, _samples(job)))
    done = train(
        job.with_(epochs=max(1, epochs)), plan, engine="virtual", folder=None, max_updates=updates, world=world
    )
    stale = _staleness(done)
    summary = done.summary()
    return Simulation(
        job.name,
        str(plan),
        plan.workers,
        summary["updates"],
        summary["seconds"],
        summary["samples_per_second"],
        (statistics.fmean(stale), sorted(stale)[len(stale) // 2], sorted(stale)[int(0.95 * (len(stale) - 1))]),
        summary["wait_fraction"] or 0.0,
        len(summary["deaths"]),
        summary["bytes_sent"] or 0,
        None if price is None else price * summary["seconds"],
        dict(done.record.history[-1].metrics) if done.record.history else None,
    )


def _samples(job: Job) -> int:
    from paceline.training.data.opening import open_source

    return len(open_source(job.data, job.seed))


def _staleness(run: Run) -> list[int]:
    rows = run.trace.of_kind(Kind.APPLY)
    rows = rows[(rows["version"] > 0) & (rows["shard"] == 0)]
    return (rows["version"] - 1 - rows["base"]).tolist() or [0]
