"""The run folder: everything about one training, openable at any moment, also after a crash.

run.json      plan, job, model, machine, versions, threads, seeds, fingerprint, status, summary
              (replaced atomically)
trace.arrow   what happened
model.pt      the trained parameters (a state_dict)
checkpoints/  the newest one, where checkpoints were asked for                             (to go on after a kill)
job.pickle    the job itself, without tensors too large to copy                            (for replay)
source.py     the text of the job's file, where there is one
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import RunFailed, RunFolderError
from paceline.runs.strict_json import strict
from paceline.runs.time_accounting import straggling
from paceline.runs.trace import Kind, Trace, TraceWriter, percentile

if TYPE_CHECKING:
    from torch import nn

    from paceline.jobs.job import Job


@dataclass
class Run:
    """One finished training."""

    path: Path | None
    trace: Trace
    record: dict[str, Any]  # what run.json holds
    model: nn.Module
    job: Job
    history: list[dict[str, float]] = field(default_factory=list)  # evaluations, in order

    def summary(self) -> dict[str, Any]:
        return dict(self.record["summary"])


class RunFolder:
    """Writes a run's folder, which exists, while the run goes on, and holds it against others who would."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._held = path, -1
        if path is None:
            return
        try:
            self._held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunFolderError(f"the run in {path} is not over: a process is still training there") from None
        except OSError as error:
            self.close()
            raise RunFolderError(
                f"the run's folder {path} cannot be opened: {error.strerror}; give another folder"
            ) from error

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Another process may go on with the run from now on."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def tidy(self) -> None:
        """The run is done, and its snapshots are evaluated."""
        if self.path:
            (self.path / "snapshots.bin").unlink(missing_ok=True)

    def file(self, name: str) -> Path | None:
        return self.path / name if self.path else None

    def keep_trace(self, trace: Trace) -> None:
        """Write a trace that was made in memory."""
        if self.path:
            writer = TraceWriter(self.path / "trace.arrow", 0)
            writer.append(trace.rows)
            writer.close()

    def write(self, record: dict[str, Any]) -> None:
        if self.path:
            with writing(self.path):
                write_json(self.path / "run.json", record)


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Into a run's folder, on a disk that may be full."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError, and leaves the reason in its cause
        reason = getattr(error, "strerror", None) or str(error)
        raise RunFailed(
            f"the run's folder {path} cannot be written: {reason}; make room, or give another (folder=, --runs)"
        ) from error


def write_json(file: Path, record: dict[str, Any]) -> None:
    """Replaced atomically: whoever reads it meanwhile finds the old or the new one whole."""
    draft = file.with_name(file.name + ".new")
    draft.write_text(json.dumps(strict(record), indent=1, default=str, allow_nan=False) + "\n")
    os.replace(draft, file)


def new_folder(base: Path, name: str) -> Path:
    """Create a folder that no other run has. Of runs that begin in the same second each gets its own."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = base / f"{stamp}-{name}{f'-{number}' if number else ''}"
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunFolderError(
                f"the run's folder {path} cannot be made: {error.strerror}; give another folder"
            ) from error
        return path
    raise RunFolderError(f"{base} already holds a thousand runs of this second; clean it up")


@contextmanager
def emptied(path: Path | None) -> Iterator[None]:
    """Remove a new folder again if an error comes before anything was written into it."""
    try:
        yield
    except BaseException:
        if path is not None:
            with suppress(OSError):  # it is not empty
                path.rmdir()
        raise


def read_record(path: Path) -> dict[str, Any]:
    try:
        return read_json(path / "run.json")
    except FileNotFoundError:
        raise RunFolderError(f"{path} is not a run's folder: it has no run.json") from None


def read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{file} is damaged: {error}") from None


def machine() -> dict[str, Any]:
    import numpy
    import torch

    from paceline import __version__

    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "paceline": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def summarise(trace: Trace, seconds: float, samples: int, updates: int, workers: int) -> dict[str, Any]:
    """The figures that follow from the trace alone."""
    stale = trace.staleness()
    updates_seen, losses = trace.loss_curve()
    return {
        "updates": updates,
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds if seconds > 0 else 0.0,
        # Of the last tenth of the updates: that of the last batch alone is chance.
        "train_loss": float(np.mean(losses[-max(1, len(losses) // 10) :])) if len(updates_seen) else None,
        "staleness": {
            "mean": float(stale.mean()) if len(stale) else 0.0,
            "p95": percentile(stale, 95),
            "max": int(stale.max()) if len(stale) else 0,
        },
        "not_finite": trace.not_finite(),
        "bytes_sent": trace.bytes_sent(),
        "wait_fraction": trace.wait_fraction(),
        "stragglers": straggling(trace.rows, workers),  # worker: its speed as a share of the others' median
        "deaths": [int(worker) for worker in trace.of_kind(Kind.DEATH)["worker"]],
    }
