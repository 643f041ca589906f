"""The snapshots of a run, which workers write for evaluations: their file, and which of them the trace names."""

from __future__ import annotations

from functools import partial

from paceline.runtime.engines.checkpoints import CheckpointRequest
from paceline.runtime.engines.outcome import Snapshot
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.workers.snapshot_file import SnapshotFile
from paceline.runtime.runs.trace import Kind, Trace
from paceline.training.parameters.layout import not_trained, trainable


def open_snapshots(setup: Setup, request: CheckpointRequest | None, every: int) -> SnapshotFile | None:
    """Open the file of snapshots, if there are any: in the run's folder if the run may be resumed."""
    if not every:
        return None
    tensors = {**trainable(setup.module), **not_trained(setup.module)}
    shapes = {name: tuple(tensors[name].shape) for name in setup.names}
    named = request.run / "snapshots.bin" if request else None
    return SnapshotFile(shapes, setup.layout.dtype, every, named)


def list_snapshots(trace: Trace, file: SnapshotFile | None) -> list[Snapshot]:
    """List the snapshots to evaluate, as the trace names them; each is read from its file when it is."""
    if file is None:
        return []
    return [
        Snapshot(int(row["update"]), float(row["start"]) / 1e9, partial(file.read, int(row["update"])))
        for row in trace.of_kind(Kind.SNAPSHOT)
    ]
