"""What must hold of a run that has ended, whatever has happened to it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from paceline.interfaces.testing.survival.nodes import Nodes
from paceline.plans.plan import Plan
from paceline.runtime.engines.replay.replay import replay
from paceline.runtime.runs.record import RunRecord, read_record
from paceline.runtime.runs.trace import Columns, Kind, Trace

#: What a run may say that does not finish: what it begins with, or contains.
ALLOWED = (
    "of the parameters is lost",
    "has lost its last pushes",
    "no other is left to finish the run",
    "since it lost the head",
    "the run has gone on without rank",
    "goes on without this rank",
    "the group has gone on without rank",
)


def applied_once(run: Path, batches: int) -> str:
    """Return what is wrong with the pushes of each shard, or with the updates of each worker; empty if nothing."""
    trace, record = Trace.open(run / "trace.arrow"), read_record(run)
    rows = trace.of_kind(Kind.APPLY)
    if Plan.recorded(record.plan, record.table).method.server is None:
        return _updated_once(rows, trace.of_kind(Kind.REGROUP), record)
    if set(rows["shard"].tolist()) != set(range(record.shards)):
        return f"pushes to shards {sorted(set(rows['shard'].tolist()))} were recorded, of {record.shards}"
    division = Plan.recorded(record.plan, record.table).division
    shares = division.shares  # pushes that a version is made of
    pushes = -(-batches // division.block) * shares
    for shard in range(record.shards):
        mine = rows[rows["shard"] == shard]
        counts = Counter(mine["update"].tolist())
        twice = sorted(batch for batch, count in counts.items() if count > 1)
        missing = sorted(set(range(pushes)) - counts.keys())
        if twice or missing or len(counts) != pushes:
            return f"shard {shard}: batches {twice[:8]} were applied twice, {missing[:8]} never"
        if sorted(mine["version"].tolist()) != [push // shares + 1 for push in range(pushes)]:
            return f"shard {shard}: its versions have gaps"
    return ""


def _updated_once(rows: Columns, groups: Columns, record: RunRecord) -> str:
    """Look at the updates of synchronous plans: every survivor makes each of them once, from where it has joined."""
    assert record.summary is not None
    survivors = set(rows["worker"].tolist()) - set(record.summary.deaths)
    for worker in survivors:
        updates = sorted(rows["update"][rows["worker"] == worker].tolist())
        joins = groups["update"][(groups["worker"] == worker) & (groups["base"] < 0)]  # it had made no collective
        whole = updates == list(range(updates[0], record.summary.updates))
        if not whole or updates[0] not in (0, *joins.tolist()):
            return f"worker {worker} did not make each update once: it made {len(updates)} from {updates[:8]} on"
    return "" if survivors else "no worker has survived"


def replayed(run: Path) -> str:
    """Return how a replay differs from the recorded run; empty if it has the same bits, or says why it cannot."""
    try:
        replayed_run = replay(run)
    except Exception as error:
        if "acknowledged pushes were lost with servers" in str(error):
            return ""
        return f"{type(error).__name__}: {error}"
    return "" if replayed_run.matches else "the replay has other bits"


def ended_well(nodes: Nodes, codes: list[int | None], killed: set[int]) -> str:
    """Return what is wrong with the ends of the nodes, of which some were killed; empty if nothing."""
    for node, code in zip(nodes.running, codes, strict=True):
        output = node.out.read_text(errors="replace")
        if code is None:
            return f"rank {node.rank} hangs: {output[-600:]}"
        if node.rank in killed and code == -9:
            continue
        if code != 0 and (code != 1 or not any(each in output for each in ALLOWED)):
            return f"rank {node.rank} has ended with {code}: {output[-1500:]}"
        if code == 0 and "Traceback" in output:
            return f"rank {node.rank} has printed a traceback: {output[-1500:]}"
    return ""


def left_behind(nodes: Nodes, seconds: float = 20.0) -> str:
    """Return which processes of a run that has ended are left; empty if none."""
    end = time.monotonic() + seconds
    while (survivors := nodes.processes()) and time.monotonic() < end:
        time.sleep(0.1)
    return f"processes {[process.pid for process in survivors]} are left" if survivors else ""
