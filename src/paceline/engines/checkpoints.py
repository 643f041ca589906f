"""Checkpoints in a run's folder: written beside, made whole, and only then given their name.

    checkpoints/400/checkpoint.json             where the history is closed; facts; where each tensor lies in its
                                                holder's bytes
    checkpoints/400/.metadata, __0_0.distcp     the holders' bytes, as torch.distributed.checkpoint
    checkpoints/400/model.safetensors           the model as it was then, for anybody

A holder is a shard or a worker. The newest is kept, and the one before, over which the next is written.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.agenda import Agenda
from paceline.core.server.cut import Cut, UnderWay
from paceline.errors import RunFolderError
from paceline.parameters.worker_state import Place, WorkerState, pack, places, unpacked
from paceline.runs.trace import Columns, Kind, Trace

FORMAT = 1
PAD = 4096  # bytes: so that a file that says a little more has the same length


@dataclass
class Checkpoint:
    updates: int
    nanoseconds: int  # of training so far
    lives: list[dict[str, Any]]  # so far, as in run.json
    cut: Cut | None  # under plans with a server
    holders: dict[str, WorkerState] = field(default_factory=dict)

    def workers(self) -> list[WorkerState]:
        """In the order of their numbers."""
        count = sum(name.startswith("worker.") for name in self.holders)
        return [self.holders[f"worker.{number}"] for number in range(count)]


def folder_of(run: Path) -> Path:
    return run / "checkpoints"


def write(run: Path, checkpoint: Checkpoint, model: dict[str, Tensor]) -> None:
    """All or nothing, also where the power fails."""
    base, name = folder_of(run), str(checkpoint.updates)
    place, draft = base / name, base / f"{name}.new"
    if place.exists():
        return
    old = _make_room(base, draft)
    state, where = dict[str, Tensor](), dict[str, list[Place]]()
    for holder, worker_state in checkpoint.holders.items():
        where[holder], size = places(worker_state.tensors)
        state[holder] = torch.empty(size, dtype=torch.uint8)
        pack(list(worker_state.tensors.values()), where[holder], state[holder])
    _save_state({holder: raw for holder, raw in state.items() if len(raw)}, draft)
    _save_model(model, draft / "model.safetensors")
    record = {
        "format": FORMAT,
        "torch": torch.__version__,
        "updates": checkpoint.updates,
        "nanoseconds": checkpoint.nanoseconds,
        "lives": checkpoint.lives,
        "cut": checkpoint.cut,
        "facts": {holder: worker_state.facts for holder, worker_state in checkpoint.holders.items()},
        "where": where,
    }
    told = json.dumps(record, default=str).encode()
    _write_over(draft / "checkpoint.json", told.ljust(-(-len(told) // PAD) * PAD))
    _sync(draft)
    os.rename(draft, place)
    _sync(base)
    for other in old:
        shutil.rmtree(other, ignore_errors=True)


def _make_room(base: Path, draft: Path) -> list[Path]:
    """An empty folder, or that of the checkpoint before the newest, to be written over. What nobody needs any more when
    this one is whole.
    """
    base.mkdir(exist_ok=True)
    names = os.listdir(base)
    *older, newest = sorted((name for name in names if name.isdigit()), key=int) or [""]
    rest = [base / name for name in names if name != newest and not (older and name == older[-1])]
    if older and not draft.exists():
        os.rename(base / older[-1], draft)
    else:
        draft.mkdir(exist_ok=True)
    return [path for path in rest if path != draft]


def _save_state(state: dict[str, Tensor], place: Path) -> None:
    """What `torch.distributed.checkpoint.save` does in a single process. Called by itself it would warn each time that
    there is only one, and take twice as long to write a small one.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    writer, planner = FileSystemWriter(place, sync_files=False), DefaultSavePlanner(flatten_state_dict=False)
    writer.fs = _Over()  # type: ignore[assignment]
    planner.set_up_planner(state, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    (plan,) = writer.prepare_global_plan(plans)
    written = writer.write_data(planner.finish_plan(plan), planner)
    writer.finish(metadata, [written.wait()])


class _Open(io.BytesIO):
    """Stays open until it is written."""

    def close(self) -> None:
        pass


class _Over:
    """The file system as `torch.distributed.checkpoint` asks for it, each file written over what was there."""

    @contextlib.contextmanager
    def create_stream(self, path: Path, mode: str) -> Iterator[io.BytesIO]:
        stream = _Open()
        yield stream
        _write_over(path.with_name(path.name.removesuffix(".tmp")), stream.getbuffer())

    def concat_path(self, path: Path, suffix: str) -> Path:
        return path / suffix

    def mkdir(self, path: Path) -> None:
        pass  # it is there

    def exists(self, path: Path) -> bool:
        return False  # the whole folder is a draft: there is nothing to warn about

    def rename(self, path: Path, new_path: Path) -> None:
        pass  # it has its name


def _save_model(model: dict[str, Tensor], file: Path) -> None:
    from safetensors.torch import save

    _write_over(file, save(model, metadata={"format": "pt"}))


def _write_over(file: Path, content: bytes | memoryview) -> None:
    """Write it where the file lies, and flush it. As long as its length stays, the file system's journal is left alone,
    which costs more than the writing.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(content)
        while rest:  # the kernel writes at most 2 GiB at once
            rest = rest[os.write(descriptor, rest) :]
        if os.fstat(descriptor).st_size != len(content):
            os.ftruncate(descriptor, len(content))
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run."""
    base = folder_of(run)
    whole = [int(path.name) for path in base.iterdir() if path.name.isdigit()] if base.is_dir() else []
    return _read(base / str(max(whole))) if whole else None


def _read(place: Path) -> Checkpoint:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        record = json.loads((place / "checkpoint.json").read_text())
        if record["format"] != FORMAT:
            raise RunFolderError(f"{place} is of format {record['format']}; this Paceline reads format {FORMAT}")
        where = {name: [Place(n, d, tuple(s), at) for n, d, s, at in held] for name, held in record["where"].items()}
        sizes = {name: places(_shapes(held))[1] for name, held in where.items()}
        state: dict[str, Any] = {name: torch.empty(size, dtype=torch.uint8) for name, size in sizes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that there is only one process
            load({name: raw for name, raw in state.items() if len(raw)}, checkpoint_id=place, no_dist=True)
    except (OSError, ValueError, KeyError, CheckpointException) as error:
        raise RunFolderError(f"the checkpoint {place} cannot be read: {type(error).__name__}: {error}") from error
    holders = {name: WorkerState(unpacked(state[name], where[name]), facts) for name, facts in record["facts"].items()}
    return Checkpoint(record["updates"], record["nanoseconds"], record["lives"], _cut(record["cut"]), holders)


def _shapes(held: list[Place]) -> dict[str, Tensor]:
    return {p.name: torch.empty(p.shape, dtype=getattr(torch, p.dtype), device="meta") for p in held}


def _cut(given: list[Any] | None) -> Cut | None:
    if given is None:
        return None
    given_out, versions, under_way = given
    return Cut(given_out, tuple(versions), tuple(UnderWay(batch, tuple(shards)) for batch, shards in under_way))


def history(trace: Trace, checkpoint: Checkpoint, agenda: Agenda) -> Columns:
    """The rows up to where the history is closed, and those that say that the run goes on from there."""
    rows = trace.rows
    kept = _kept_by_cut(rows, checkpoint, checkpoint.cut, agenda) if checkpoint.cut else _kept_in_step(rows, checkpoint)
    versions = checkpoint.cut.versions if checkpoint.cut else (checkpoint.updates,)
    marks = np.zeros(len(versions), rows.dtype)
    marks["kind"], marks["worker"], marks["update"], marks["base"] = Kind.RESUME, -1, checkpoint.updates, -1
    marks["shard"] = np.arange(len(versions)) if checkpoint.cut else -1
    marks["version"], marks["start"], marks["end"] = versions, checkpoint.nanoseconds, checkpoint.nanoseconds
    marks["value"] = np.nan
    return np.concatenate([rows[kept], marks])


def _kept_in_step(rows: Columns, checkpoint: Checkpoint) -> np.ndarray[Any, np.dtype[np.bool_]]:
    marks = np.isin(rows["kind"], (Kind.SNAPSHOT, Kind.RESUME)) & (rows["update"] == checkpoint.updates)
    kept: np.ndarray[Any, np.dtype[np.bool_]] = (rows["update"] < checkpoint.updates) | marks
    return kept


def _kept_by_cut(
    rows: Columns, checkpoint: Checkpoint, cut: Cut, agenda: Agenda
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """All that was over by then, without what was done for batches that were under way; but of those, the pushes that
    shards had taken and the computations these came from.
    """
    under_way = {batch for batch, _ in cut.under_way}
    kinds, kept = rows["kind"], rows["end"] <= checkpoint.nanoseconds
    of_batch = np.isin(kinds, (Kind.COMPUTE, Kind.APPLY, Kind.DROP))
    lease: Callable[[int], int] = agenda.lease
    leases = np.array([lease(int(u)) if k == Kind.COMPUTE else u for k, u in zip(kinds, rows["update"], strict=True)])
    doubtful = of_batch & (np.isin(leases, list(under_way)) | (leases >= cut.given_out))
    versions = np.array(cut.versions)
    taken = doubtful & (kinds == Kind.APPLY) & (rows["version"] > 0)
    taken &= rows["version"] <= versions[np.where(taken, rows["shard"], 0)]
    came_from = {(int(w), int(u)) for w, u in zip(rows["worker"][taken], leases[taken], strict=True)}
    computed = [
        bool(d) and k == Kind.COMPUTE and (int(w), int(u)) in came_from
        for d, k, w, u in zip(doubtful, kinds, rows["worker"], leases, strict=True)
    ]
    kept &= ~doubtful | taken | np.array(computed, bool)
    return kept
