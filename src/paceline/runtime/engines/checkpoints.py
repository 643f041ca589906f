"""Checkpoints in a run's folder: each is written under another name, completed, and only then renamed.

    checkpoints/400/checkpoint.json             the cut; facts; the position of each tensor in its holder's bytes
    checkpoints/400/state.safetensors           the bytes of each holder
    checkpoints/400/model.safetensors           the model as it was then, for other programs

A holder is a shard or a worker. The newest checkpoint is kept, and the one before, which the next one overwrites.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.server.checkpoint_cut import Cut
from paceline.errors import RunFolderError
from paceline.runtime.runs.record import AttemptRecord, CheckpointInterval
from paceline.runtime.runs.schema import from_dict, to_dict
from paceline.runtime.runs.trace import Columns, Kind, Trace
from paceline.training.parameters.worker_state import TensorSlot, WorkerState, pack, tensor_slots, unpacked

FORMAT = 2  # the state of format 1 is a torch.distributed.checkpoint, whose import takes half a second
RECORD, STATE, MODEL = "checkpoint.json", "state.safetensors", "model.safetensors"
SMALL = 1 << 14  # bytes of a file whose content is remembered
PAD = 4096  # checkpoint.json is padded to a multiple: a file that keeps its length is written faster


#: What this process has flushed last into small files, by device and inode.
FLUSHED: dict[tuple[int, int], bytes] = {}


@dataclass(frozen=True)
class CheckpointRecord:
    """The contents of checkpoint.json."""

    format: int
    #: The version of torch that wrote it.
    torch: str
    updates: int
    nanoseconds: int
    lives: tuple[AttemptRecord, ...]
    cut: Cut | None
    #: For each holder, the part of its state that is no tensor.
    facts: dict[str, Any]
    #: For each holder, the position of each tensor in its bytes.
    where: dict[str, tuple[TensorSlot, ...]]


@dataclass
class Checkpoint:
    """The state of a run after an update, from which it can be resumed."""

    updates: int
    #: Nanoseconds of training so far.
    nanoseconds: int
    #: The parts of the run so far, one from each start or resumption to the next.
    lives: tuple[AttemptRecord, ...]
    #: The state of the desk and the shards, under plans with a server.
    cut: Cut | None
    holders: dict[str, WorkerState] = field(default_factory=dict)

    def workers(self) -> list[WorkerState]:
        """The states of the workers, in the order of their numbers."""
        count = sum(name.startswith("worker.") for name in self.holders)
        return [self.holders[f"worker.{number}"] for number in range(count)]


@dataclass(frozen=True)
class CheckpointRequest:
    """The checkpoints that the user requested, and the one that the run is resumed from."""

    #: The run's folder.
    run: Path
    interval: CheckpointInterval
    lives: tuple[AttemptRecord, ...]
    #: None if the run starts from the beginning.
    start: Checkpoint | None


def folder_of(run: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run / "checkpoints"


def resume_line(run: Path | str, where: str = "by the same launcher or on one machine") -> str:
    """Return a further line of a message: the command that resumes a run, and where it may be given."""
    return f"\n  resume  paceline train --resume {shlex.quote(str(run))}" + (f"   ({where})" if where else "")


def write(run: Path, checkpoint: Checkpoint, model: dict[str, Tensor]) -> None:
    """Write a checkpoint. A crash or a power failure leaves all of it or nothing."""
    base, name = folder_of(run), str(checkpoint.updates)
    folder, draft = base / name, base / f"{name}.new"
    if folder.exists():
        return
    old = _make_draft(base, draft)
    try:
        _write(draft, checkpoint, model)
        os.rename(draft, folder)
    except BaseException:  # of no use, and perhaps of a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _sync(base)
    for other in old:
        shutil.rmtree(other, ignore_errors=True)


def _write(draft: Path, checkpoint: Checkpoint, model: dict[str, Tensor]) -> None:
    """Write the files of a checkpoint into its draft."""
    before = set(os.listdir(draft))
    for stray in before - {RECORD, STATE, MODEL}:  # of format 1
        os.unlink(draft / stray)
    state, where = dict[str, Tensor](), dict[str, tuple[TensorSlot, ...]]()
    for holder, worker_state in checkpoint.holders.items():
        slots, size = tensor_slots(worker_state.tensors)
        where[holder], state[holder] = tuple(slots), torch.empty(size, dtype=torch.uint8)
        pack(list(worker_state.tensors.values()), slots, state[holder])
    _save(state, draft / STATE)
    _save(model, draft / MODEL)
    facts = {holder: worker_state.facts for holder, worker_state in checkpoint.holders.items()}
    record = CheckpointRecord(
        FORMAT,
        torch.__version__,
        checkpoint.updates,
        checkpoint.nanoseconds,
        checkpoint.lives,
        checkpoint.cut,
        facts,
        where,
    )
    text = json.dumps(to_dict(record), default=str).encode()
    _write_over(draft / RECORD, text.ljust(-(-len(text) // PAD) * PAD))
    if before != set(os.listdir(draft)):
        _sync(draft)  # else every name in it has been flushed with the checkpoint before


def _make_draft(base: Path, draft: Path) -> list[Path]:
    """Make the folder `draft`, and return the folders to delete when the new checkpoint is complete.

    The draft reuses the folder of the second newest checkpoint, since files are overwritten faster than created.
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


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    from safetensors.torch import save

    _write_over(file, save(tensors, metadata={"format": "pt"}))


def _write_over(file: Path, content: bytes | memoryview) -> None:
    """Overwrite the file in place and flush it, unless this process has flushed the same into it before.

    While its length stays the same the file system writes no journal, which would cost more than the content.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        status = os.fstat(descriptor)
        name = status.st_dev, status.st_ino
        if status.st_size == len(content) and FLUSHED.get(name) == content:
            return
        rest = memoryview(content)
        while rest:  # the kernel writes at most 2 GiB at once
            rest = rest[os.write(descriptor, rest) :]
        if status.st_size > len(content):
            os.ftruncate(descriptor, len(content))
        os.fdatasync(descriptor)
        if len(content) <= SMALL:
            FLUSHED[name] = bytes(content)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest(run: Path) -> Checkpoint | None:
    """Read the newest complete checkpoint of a run; None if there is none."""
    base = folder_of(run)
    numbers = [int(path.name) for path in base.iterdir() if path.name.isdigit()] if base.is_dir() else []
    return _read(base / str(max(numbers))) if numbers else None


def change_settings(run: Path, optimizer: torch.optim.Optimizer) -> None:
    """Let the newest checkpoint of a run be resumed with this optimizer's settings, such as another learning rate."""
    file = max((each for each in folder_of(run).iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    record = json.loads((file / RECORD).read_text(encoding="utf-8"))
    for facts in record["facts"].values():
        for settings, group in zip(facts.get("settings", ()), optimizer.param_groups, strict=False):
            settings.update({key: value for key, value in group.items() if key in settings})
    (file / RECORD).write_text(json.dumps(record))


def _read(folder: Path) -> Checkpoint:
    """Read a checkpoint."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        record = _read_record(folder)
        # Not as a mapping of the file, which is overwritten later.
        state = _read_distributed(folder, record) if record.format == 1 else load((folder / STATE).read_bytes())
        holders = {
            name: WorkerState(unpacked(state[name].clone(), record.where[name]), facts)  # clone: aligned
            for name, facts in record.facts.items()
        }
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunFolderError(f"the checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error
    return Checkpoint(record.updates, record.nanoseconds, record.lives, record.cut, holders)


def _read_distributed(folder: Path, record: CheckpointRecord) -> dict[str, Tensor]:
    """Read the state of a checkpoint of format 1."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    sizes = {name: tensor_slots(_shapes(shapes))[1] for name, shapes in record.where.items()}
    state: dict[str, Any] = {name: torch.empty(size, dtype=torch.uint8) for name, size in sizes.items()}
    # PyTorch 2.4 finds out on its own that there is only one process.
    alone = {"no_dist": True} if "no_dist" in signature(load).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is only one process
        try:
            load({name: raw for name, raw in state.items() if len(raw)}, checkpoint_id=folder, **alone)
        except CheckpointException as error:
            raise ValueError(str(error)) from error
    return state


def _read_record(folder: Path) -> CheckpointRecord:
    value = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    if value["format"] > FORMAT:
        raise RunFolderError(
            f"{folder / RECORD} has format {value['format']}; this paceline reads up to {FORMAT}; install a "
            "newer paceline"
        )
    return from_dict(CheckpointRecord, value)


def _shapes(slots: Sequence[TensorSlot]) -> dict[str, Tensor]:
    return {p.name: torch.empty(p.shape, dtype=getattr(torch, p.dtype), device="meta") for p in slots}


def history(trace: Trace, checkpoint: Checkpoint, agenda: Agenda) -> Columns:
    """Select the rows that led to a checkpoint, and append a RESUME row per shard."""
    rows = led_to(trace, checkpoint, agenda)
    versions = checkpoint.cut.versions if checkpoint.cut else (checkpoint.updates,)
    marks = np.zeros(len(versions), rows.dtype)
    marks["kind"], marks["worker"], marks["update"], marks["base"] = Kind.RESUME, -1, checkpoint.updates, -1
    marks["shard"] = np.arange(len(versions)) if checkpoint.cut else -1
    marks["version"], marks["start"], marks["end"] = versions, checkpoint.nanoseconds, checkpoint.nanoseconds
    marks["value"] = np.nan
    return np.concatenate([rows, marks])


def led_to(trace: Trace, checkpoint: Checkpoint, agenda: Agenda) -> Columns:
    """Select the rows that led to a checkpoint."""
    rows = trace.rows
    mask = _kept_by_cut(rows, checkpoint, checkpoint.cut, agenda) if checkpoint.cut else _kept_in_step(rows, checkpoint)
    selected: Columns = rows[mask]
    return selected


def _kept_in_step(rows: Columns, checkpoint: Checkpoint) -> np.ndarray[Any, np.dtype[np.bool_]]:
    marks = np.isin(rows["kind"], (Kind.SNAPSHOT, Kind.RESUME)) & (rows["update"] == checkpoint.updates)
    mask: np.ndarray[Any, np.dtype[np.bool_]] = (rows["update"] < checkpoint.updates) | marks
    return mask


def _kept_by_cut(
    rows: Columns, checkpoint: Checkpoint, cut: Cut, agenda: Agenda
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Select the rows that ended before the checkpoint, without those of batches that were under way then.

    For these batches the pushes that shards had applied are kept, and the computations that they came from.
    """
    under_way = {batch for batch, _ in cut.under_way}
    kinds, mask = rows["kind"], rows["end"] <= checkpoint.nanoseconds
    of_batch = np.isin(kinds, (Kind.COMPUTE, Kind.APPLY, Kind.DROP))
    lease: Callable[[int], int] = agenda.lease
    leases = np.array([lease(int(u)) if k == Kind.COMPUTE else u for k, u in zip(kinds, rows["update"], strict=True)])
    doubtful = of_batch & (np.isin(leases, list(under_way)) | (leases >= cut.given_out))
    versions = np.array(cut.versions)
    applied = doubtful & (kinds == Kind.APPLY) & (rows["version"] > 0)
    applied &= rows["version"] <= versions[np.where(applied, rows["shard"], 0)]
    came_from = {(int(w), int(u)) for w, u in zip(rows["worker"][applied], leases[applied], strict=True)}
    computed = [
        bool(d) and k == Kind.COMPUTE and (int(w), int(u)) in came_from
        for d, k, w, u in zip(doubtful, kinds, rows["worker"], leases, strict=True)
    ]
    mask &= ~doubtful | applied | np.array(computed, bool)
    return mask
