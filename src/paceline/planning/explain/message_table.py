"""Drawing operators at work as text: a line per worker, a column per piece of work, from a simulation in time only."""

from __future__ import annotations

from paceline.plans.methods.views import Operators
from paceline.plans.plan import Plan

INSTANCES, COMPUTE = 6, 1e-3  # trees that are drawn, and the seconds of one
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw_messages(plan: Plan, operators: Operators) -> list[str]:
    """Draw a few trees on their way through operators: of one shape after another, several at a time."""
    from paceline.algorithms.dataflow.instances import Instances
    from paceline.runtime.engines.virtual import World, simulate
    from paceline.runtime.runs.trace import Kind

    parts = operators.micro_batches
    agenda = plan.agenda(INSTANCES, parts, 1)
    world = World(compute=COMPUTE, jitter=0.0, latency=COMPUTE / 100, update=0.0)
    trace, instances = simulate(plan, agenda, world, 0), Instances(agenda)
    works = trace.of_kind(Kind.STAGE)
    tick = min(int(row["end"] - row["start"]) for row in works)
    lines = [""] * plan.workers
    for row in works[works["start"].argsort(kind="stable")]:
        worker, letter = int(row["worker"]), LETTERS[instances.number(int(row["update"]), int(row["base"]))]
        first, last = round(int(row["start"]) / tick), round(int(row["end"]) / tick)
        sign = letter if chr(int(row["version"])) == "F" else letter.upper()
        lines[worker] = lines[worker].ljust(first, ".") + sign * max(1, last - first)
    length = max(map(len, lines))
    stale = trace.staleness()
    return [
        *(f"worker {number:<2} {line.ljust(length, '.')}" for number, line in enumerate(lines)),
        "",
        f"  a   a call of tree a forward; trees {LETTERS[0]} to {LETTERS[INSTANCES - 1]} have one to three leaves",
        "  A   the same call backward, which takes twice as long here",
        "  .   no message is there",
        "",
        f"At most {operators.active} trees are under way. An operator makes an update when {operators.every} "
        f"tree{'s have' if operators.every > 1 else ' has'} brought it all of",
        f"{'their' if operators.every > 1 else 'its'} gradients. Meanwhile the oldest of them had seen "
        f"{stale.mean():.1f} updates on average, at most {stale.max()}.",
    ]
