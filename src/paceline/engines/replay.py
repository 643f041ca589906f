"""A recorded run again, in one process, bit for bit.

A synchronous plan needs only its table. An asynchronous one needs the trace: it says which version of each shard a
worker held when it computed, and in which order the shards took the pushes; everything else follows. Rows are taken
worker by worker in their order, each push waiting for its shard to come to its turn, so no clock has to be trusted.

    replay(run)                 the same bits, or ReplayDiverged
    replay(run, until=120)      the model as it was after update 120, and the batch of the next update
    replay(run, until="nan")    the model just before the first update that was not finite, and the guilty batch
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.compute.layout import sha256
from paceline.compute.payload import Computed
from paceline.compute.rows import numbers
from paceline.engines.arithmetic import Apart, Commuting, Unlocked, by_shards, in_step, threads
from paceline.engines.setup import JobWarning, Setup, load_values, set_up
from paceline.errors import ReplayDiverged, RunFolderError, UsageError
from paceline.job import Batch, Job, load_job
from paceline.plan import Plan
from paceline.run import Run, read_record
from paceline.trace import Columns, Kind, Trace


@dataclass
class Replay:
    """Where a replay stopped."""

    model: nn.Module
    updates: int  # done
    parameters_sha256: str
    matches: bool | None  # the recorded bits; None when stopped on the way
    guilty_update: int | None = None  # the update (asynchronous: batch) that would come next
    guilty_batch: Batch | None = None
    guilty_samples: torch.Tensor | None = None  # its sample numbers
    guilty_worker: int | None = None
    loss: float | None = None  # of the guilty batch, as computed then


@dataclass(frozen=True)
class Played:
    """One version of one shard, made again."""

    shard: int
    version: int
    finite: bool  # the loss and gradient it came from, and the shard after it


@dataclass(frozen=True)
class Guilty:
    """The update that would come next."""

    update: int
    worker: int
    loss: float | None  # None when its worker had not computed it yet


def replay(
    run: Run | str | Path, until: str | int | None = None, *, data: Any = None, job: Job | None = None
) -> Replay:
    """Run a recorded run again. `data` (or `job`) is needed only where the folder could not keep it."""
    if isinstance(until, str) and until != "nan" and not until.isdigit():
        raise UsageError(f"until={until!r} is neither an update number nor 'nan'")
    opened, record, trace = _open(run, data, job)
    plan = Plan.parse(record["plan"])
    if not plan.replayable:
        why = (
            "without locks its updates have no order"
            if not plan.native
            else "nobody wrote down in which order it summed"
        )
        raise UsageError(f"a run of plan {plan.name} cannot be replayed: {why}")
    with threads(record["threads"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)  # it was said when the run was made
            setup = set_up(opened, plan, "replay", record["limit"])
        _check_same_start(setup, record)
        shard, stop = 0, None if until in (None, "nan") else int(until)
        if until == "nan":
            bad = _first_bad(setup, trace)
            if bad is None:
                raise UsageError("nothing in this run was not finite: there is no NaN to stop before")
            shard, stop = bad.shard, bad.version - 1
        if stop is not None and not 0 <= stop <= setup.agenda.updates:
            raise UsageError(f"until={stop}, but the run had updates 0 to {setup.agenda.updates}")
        return _run(setup, trace, stop, shard, record)


def _open(run: Run | str | Path, data: Any, job: Job | None) -> tuple[Job, dict[str, Any], Trace]:
    if isinstance(run, Run):
        return job or run.job, run.record, run.trace
    path = Path(run)
    record = read_record(path)
    if job is None:
        try:
            opened: Job = pickle.loads((path / "job.pickle").read_bytes())
        except FileNotFoundError:
            raise RunFolderError(f"{path} has no job.pickle; give the job: replay(path, job=job)") from None
        if data is None and opened.data is None:
            if not opened.origin:
                raise RunFolderError(
                    f"{path} did not keep its data, which is large; give it: replay(path, data=(x, y))"
                )
            data = load_job(opened.origin).data
        job = opened if data is None else opened.with_(data=data)
    return job, record, Trace.open(path / "trace.arrow")


def _check_same_start(setup: Setup, record: dict[str, Any]) -> None:
    if setup.source.fingerprint() != record["data_fingerprint"]:
        raise ReplayDiverged("the data are not those of the recorded run: their fingerprints differ")
    if setup.initial_sha256 != record["initial_sha256"]:
        raise ReplayDiverged("the model does not start from the recorded parameters: model= draws other numbers now")
    if torch.__version__ != record["machine"]["torch"]:
        warnings.warn(
            f"recorded with torch {record['machine']['torch']}, replayed with {torch.__version__}: bits may differ",
            JobWarning,
            stacklevel=3,
        )


def _run(setup: Setup, trace: Trace, until: int | None, shard: int, record: dict[str, Any]) -> Replay:
    player = _player(setup, trace)
    for _ in player.play(until):
        pass
    module = load_values(setup, player.values())
    found = Replay(module, player.done, sha256(module), None)
    if until is not None and until < player.last:
        guilty = player.next(shard, until)
        chunks = setup.agenda.filled(guilty.update)
        order = setup.order()
        found.guilty_update, found.guilty_worker, found.loss = guilty.update, guilty.worker, guilty.loss
        found.guilty_samples = torch.cat([order.indices(chunk) for chunk in chunks])
        found.guilty_batch = setup.source.batch(found.guilty_samples, chunks[0].epoch)
    elif record["status"] == "done":
        found.matches = found.parameters_sha256 == record["summary"]["parameters_sha256"]
        if not found.matches:
            raise ReplayDiverged(
                f"replayed {player.done} updates, but the parameters are {found.parameters_sha256[:16]}, "
                f"not the recorded {record['summary']['parameters_sha256'][:16]}. "
                "Does the job draw chance that the seed does not reach?"
            )
    return found


def _first_bad(setup: Setup, trace: Trace) -> Played | None:
    """The lowest version of any shard that is not finite, or came from something that was not."""
    player, bad = _player(setup, trace), None
    for played in player.play(None):
        if not played.finite and (bad is None or played.version < bad.version):
            bad = played
        if bad is not None and player.done >= bad.version:
            break
    return bad


class _InStep:
    """Synchronous plans, and the first worker of a plan where nobody meets."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.sums = setup, in_step(setup)
        plan, updates = setup.plan, setup.agenda.updates
        self.alone = not plan.synchronous
        self.updates = list(range(0, updates, plan.workers if self.alone else 1))
        self.done, self.last = 0, len(self.updates)

    def play(self, until: int | None) -> Iterator[Played]:
        for update in self.updates[:until]:
            shares = self._shares(update)
            good = all(_finite(share) for share in shares)
            self.sums.apply(update, shares)
            self.done += 1
            good = good and self.sums.finite()
            yield Played(0, self.done, good)

    def next(self, shard: int, until: int) -> Guilty:
        shares = self._shares(self.updates[until])
        bad = next((n for n, share in enumerate(shares) if not _finite(share)), 0)
        return Guilty(self.updates[until], bad, sum(s.loss for s in shares) / sum(s.weight for s in shares))

    def _shares(self, update: int) -> list[Computed]:
        agenda = self.setup.agenda
        if self.alone:
            return [self.sums.compute(0, agenda.filled(update))]
        return [self.sums.compute(worker, agenda.mine(update, worker)) for worker in range(self.setup.plan.workers)]

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


class _ByTrace:
    """Asynchronous plans: every shard takes the pushes in the recorded order."""

    def __init__(self, setup: Setup, trace: Trace) -> None:
        self.setup, self.sums = setup, _server(setup)
        shards = len(setup.layout.shards)
        self.versions, self.last = [0] * shards, setup.agenda.leases
        self.lines = [_line(trace.rows, worker) for worker in range(setup.plan.workers)]
        # A worker killed between writing a row and making its version leaves a row too many: the later one is true.
        rows = trace.of_kind(Kind.APPLY)
        self.true_rows = {(int(r["shard"]), int(r["version"])): r for r in rows}
        self.losses: dict[int, tuple[int, float, bool]] = {}  # worker -> (batch, loss, finite)

    @property
    def done(self) -> int:
        return min(self.versions)

    def play(self, until: int | None) -> Iterator[Played]:
        """Make every version up to `until` of every shard."""
        places, moved = [0] * len(self.lines), True
        while moved:
            moved = False
            for worker, line in enumerate(self.lines):
                while places[worker] < len(line) and self._ready(line[places[worker]], until):
                    yield from self._perform(line[places[worker]])
                    places[worker], moved = places[worker] + 1, True

    def next(self, shard: int, until: int) -> Guilty:
        row = self.true_rows[shard, until + 1]
        batch, loss, _ = self.losses.get(int(row["worker"]), (-1, 0.0, True))
        updates = self.setup.agenda.leased(int(row["update"]))
        return Guilty(updates[0], int(row["worker"]), loss if batch == updates[-1] else None)

    def _ready(self, row: Any, until: int | None) -> bool:
        if row["kind"] == Kind.COMPUTE or not self._is_true(row):
            return True
        version = int(row["version"])
        return self.versions[row["shard"]] == version - 1 and (until is None or version <= until)

    def _is_true(self, row: Any) -> bool:
        return bool(self.true_rows[int(row["shard"]), int(row["version"])] == row)

    def _perform(self, row: Any) -> Iterator[Played]:
        worker, update, shard = int(row["worker"]), int(row["update"]), int(row["shard"])
        block = self.setup.agenda.block
        if row["kind"] == Kind.COMPUTE:
            computed = self.sums.compute(worker, self.setup.agenda.filled(update))
            before = self.losses.get(worker, (-1, 0.0, True))
            good = _finite(computed) and (before[2] or before[0] // block != update // block)
            self.losses[worker] = (update, computed.loss / computed.weight, good)
        elif self._is_true(row):
            self.sums.push(worker, shard, int(row["version"]))
            self.versions[shard] += 1
            good = self.losses[worker][2] and bool(self.sums.newest(shard).values.isfinite().all())
            yield Played(shard, self.versions[shard], good)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


def _player(setup: Setup, trace: Trace) -> _InStep | _ByTrace:
    return _InStep(setup) if setup.plan.gate is None else _ByTrace(setup, trace)


def _server(setup: Setup) -> Apart | Commuting:
    sums = by_shards(setup)
    assert not isinstance(sums, Unlocked)  # it has no order to replay
    return sums


def _line(rows: Columns, worker: int) -> Columns:
    """One worker's computations and pushes, in its own order."""
    mine = rows[(rows["worker"] == worker) & np.isin(rows["kind"], (Kind.COMPUTE, Kind.APPLY))]
    ordered: Columns = mine[np.argsort(mine["end"], kind="stable")]
    return ordered


def _finite(computed: Computed) -> bool:
    return math.isfinite(computed.loss) and all(
        bool(numbers(g).isfinite().all()) for g in computed.gradients if g is not None
    )
