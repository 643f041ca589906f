"""The folder of a run, readable at any moment, and what its run.json holds, as records.

docs/internals/run-folder.md has a table of every field.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from paceline.errors import RunFailed, RunFolderError
from paceline.errors.renames import JOB_FIELDS, JOB_VALUES
from paceline.instruction_sets import max_cpu_isa
from paceline.names import file_name
from paceline.runtime.runs.schema import INLINE, SCHEMA_VERSION, StrEnum, draft_of, json_text, read_as, to_dict
from paceline.runtime.runs.trace import Trace, TraceWriter
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.errors.failure import Failure


class Status(StrEnum):
    """How far a run is. `RUNNING` is also what a killed run leaves: live.json tells the two apart."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # by a signal or a callback
    UNKNOWN = "unknown"  # an old file that does not say


class CheckpointInterval(NamedTuple):
    """How much of the run lies between two checkpoints; both 0: checkpoints are written only when a signal asks."""

    updates: int  # 0: not counted in updates
    seconds: float  # 0: not counted in seconds


@dataclass(frozen=True)
class AttemptRecord:
    """One life of a run: it begins with the run, or when the run is resumed."""

    plan: str
    updates: int  # that earlier lives had made
    engine: str = ""  # where no life says so, they all had the engine of the record


@dataclass(frozen=True)
class LayerRecord:
    """One layer of the model."""

    name: str
    type: str
    parameters: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of each parameter
    output: tuple[int, ...] | None = None  # the shape for one batch; None: a small batch did not reach the layer
    after: tuple[int, ...] = ()  # numbers of the layers whose output it reads
    held: tuple[int, ...] = ()  # bytes of it at each worker, under plans that divide the model


@dataclass(frozen=True)
class JobRecord:
    """The settings of the job. None where they are not known, as in a user-defined loop (`parallel`)."""

    RENAMED: ClassVar[dict[str, str]] = JOB_FIELDS

    name: str = "?"
    origin: str = ""  # where the command line found the job
    arguments: tuple[str, ...] = ()  # sys.argv[1:] of the job's program
    batch_size: int | None = None
    epochs: int | None = None
    accumulate_grad_batches: int | None = None
    seed: int | None = None
    precision: str | None = None
    device: str = ""  # of each worker, without repetition
    optimizer: str = ""  # as one would write it in Python
    gradient_clip_norm: float | None = None
    shuffle: bool | None = None
    evaluate_every: int | None = None
    on_nan: str | None = None
    num_workers: int | None = None
    samples: int | None = None  # in the training data
    test_samples: int = 0
    parameters: int = 0  # trainable numbers

    @property
    def job_args(self) -> str | None:
        """The arguments as --job-args takes them; None where there are none, or the job is not in a file."""
        in_file = self.origin.partition(":")[0].endswith((".py", ".toml"))
        return shlex.join(self.arguments) if in_file and self.arguments else None


@dataclass(frozen=True)
class DataOrigin:
    """A folder of shards, or a stream, that a training reads."""

    folder: str
    split: str = ""  # of a folder of shards
    samples: int = 0


@dataclass(frozen=True)
class MovingBuffers:
    """Buffers that training changes, such as running statistics, and how workers agree on them."""

    owner: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class MachineRecord:
    """Where the run was made, and with which versions."""

    system: str = ""
    processor: str = ""
    cores: int = 0  # that the process may use
    paceline: str = ""
    python: str = ""
    torch: str = ""
    numpy: str = ""
    max_cpu_isa: str = ""  # the newest instruction set that could compute; empty: the processor's own


@dataclass(frozen=True)
class FailureRecord:
    """Which worker failed first, and at what."""

    worker: int
    what: str
    update: int = -1  # -1: before its first
    version: int = -1  # of the parameters that it computed with; -1: not known
    samples: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()  # workers that were stopped because of it
    advice: str = ""
    traceback: str = ""

    @staticmethod
    def of(failure: Failure) -> FailureRecord:
        """Describe a failure for run.json."""
        position = failure.position
        return FailureRecord(
            worker=failure.worker,
            what=failure.what,
            update=position.update,
            version=position.version,
            samples=tuple(position.samples),
            victims=tuple(failure.victims),
            advice=failure.advice,
            traceback=failure.traceback,
        )

    @property
    def parameters_version(self) -> int:
        """The version of the parameters that the worker computed with; where it is not known, its update."""
        return self.version if self.version >= 0 else self.update


@dataclass(frozen=True)
class DeathRecord:
    """A worker of a cluster that ended before the run did, which others finish."""

    worker: int
    how: str  # how it ended, or why it was given up
    update: int = -1  # that it was in; -1: before its first
    seconds: float = 0.0  # of training until then


@dataclass(frozen=True)
class Evaluation:
    """One evaluation on the test data."""

    updates: int
    seconds: float  # of training so far
    metrics: dict[str, float] = field(
        default_factory=dict, metadata=INLINE
    )  # test_loss, test_accuracy and those of `metrics=`


@dataclass(frozen=True)
class Staleness:
    """Updates made between a worker's pull and its push, over all pushes."""

    mean: float = 0.0
    p95: float = 0.0
    max: int = 0


@dataclass(frozen=True)
class Summary:
    """The figures of a finished run; `paceline train --json` prints the same."""

    plan: str
    engine: str
    workers: int
    updates: int
    samples: int
    seconds: float  # of training, without starting workers and evaluating
    samples_per_second: float
    compute: str = "script"
    epochs: int | None = None
    train_loss: float | None = None  # mean over the last tenth of the updates
    staleness: Staleness = field(default_factory=Staleness)
    not_finite: int = 0  # gradients that came from a loss of NaN or infinity
    bytes_sent: int | None = 0  # None for ddp, whose trace does not show it; the next one likewise
    wait_fraction: float | None = 0.0  # share of the workers' time
    stragglers: dict[int, float] = field(default_factory=dict)  # worker: its speed as a share of the others' median
    advised_sizes: str = ""  # of the chunks of a batch, by the workers' speeds, where one is a straggler
    idle: tuple[int, ...] = ()  # workers that computed nothing, as the others had done everything before they began
    deaths: tuple[int, ...] = ()  # workers that died; the others finished their work
    peak_memory: tuple[int, ...] = ()  # bytes of each worker, where it is measured
    core_wait_fraction: float = 0.0  # share of the workers' time in which they could have run, but had no core
    #: Those of the last evaluation.
    metrics: dict[str, float] = field(default_factory=dict, metadata=INLINE)
    run: str | None = None  # the folder
    parameters_sha256: str = ""


@dataclass(frozen=True)
class RunRecord:
    """Everything that run.json says of a run."""

    plan: str = "?"
    status: Status = Status.UNKNOWN
    schema_version: int = SCHEMA_VERSION
    started: str = ""  # ISO 8601, with the zone
    table: str = ""  # the user's own table of a pipeline, as text
    engine: str = "local"
    compute: str = "autograd"
    workers: int = 1
    threads: int = 1  # that each worker computes with
    shards: int = 1
    adds_up: str = ""  # a library that added gradients up, in an order that is not known; such a run has no replay
    limit: int | None = None  # updates after which the run was to stop
    checkpoint_every: CheckpointInterval | None = None  # None: it writes no checkpoints
    lives: tuple[AttemptRecord, ...] = ()
    job: JobRecord = field(default_factory=JobRecord)
    moving_buffers: MovingBuffers = field(default_factory=MovingBuffers)
    data_fingerprint: str = ""
    data: tuple[DataOrigin, ...] = ()  # the folders of shards that the samples are from
    initial_sha256: str = ""  # of the parameters before the first update
    arithmetic_version: int = 1  # changes with the bits that a plan trains; old files have none
    files: dict[str, str] = field(default_factory=dict)  # of the user's own that the job has loaded: SHA-256 by path
    notes: tuple[str, ...] = ()  # warnings given before the start
    machine: MachineRecord = field(default_factory=MachineRecord)
    model: tuple[LayerRecord, ...] = ()
    history: tuple[Evaluation, ...] = ()
    summary: Summary | None = None  # None until the run is done
    error: str = ""
    failure: FailureRecord | None = None
    deaths: tuple[DeathRecord, ...] = ()  # of a cluster's workers, in their order

    def with_(self, **changes: Any) -> RunRecord:
        """The same record with some fields changed."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """The record as it is written to run.json."""
        document: dict[str, Any] = to_dict(self)
        return document


def read_record(path: Path) -> RunRecord:
    """Read a run folder's run.json; RunFolderError if it is missing, damaged or of a newer schema."""
    try:
        record = read_as(RunRecord, path / "run.json")
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(_no_run(path)) from None
    if record.plan == RunRecord.plan:
        raise RunFolderError(f"{path / 'run.json'} is damaged: it names no plan; give the folder of another run")
    precision = record.job.precision
    return record.with_(job=replace(record.job, precision=JOB_VALUES["precision"].get(precision or "", precision)))


def _no_run(path: Path) -> str:
    """Return what is said of a path that is no run's folder, with the newest runs in it if it holds some."""
    if not path.exists():
        return f"there is no folder {path}; `paceline runs` lists the runs here"
    message = f"{path} is not a run's folder: it has no run.json"
    runs = sorted((file.parent for file in path.glob("*/run.json")), key=lambda run: run.name)[-3:]
    return f"{message}; give one in it, such as {', '.join(map(str, reversed(runs)))}" if runs else message


# The machine that a run is made on, for its record.


def this_machine() -> MachineRecord:
    """Describe this machine and the versions in use."""
    import numpy
    import torch

    return MachineRecord(
        system=platform.platform(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        paceline=__version__,
        python=sys.version.split()[0],
        torch=torch.__version__,
        numpy=numpy.__version__,
        max_cpu_isa=max_cpu_isa(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# The folder of a run: everything about one training, readable at any moment, also after a crash.
#
# run.json      plan, job, model, machine, versions, status and summary (`runs.record`), replaced atomically
# live.json     while workers train: their processes and what each is at (`runs.live`), replaced atomically
# trace.arrow   what happened (`runs.trace`)
# model.pt      the trained parameters, a state_dict
# checkpoints/  the newest one, where checkpoints were asked for; a killed run is resumed from it
# job.pickle    the job itself, without tensors too large to copy, for a replay
# source.py     the text of the job's file, where there is one

RESERVED = 64 << 10  # bytes by which the last record may be longer than the first: an error, a history


class RunFolder:
    """Writes the files of a run into its folder, which exists, and keeps other processes from training there."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = -1  # the folder's descriptor, under an exclusive lock; -1: closed, or no folder
        if path is None:
            return
        try:
            self._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        """Release the folder: another process may resume the run."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove_snapshots(self) -> None:
        """Delete the snapshots of a finished run; they have been evaluated."""
        if self.path:
            (self.path / "snapshots.bin").unlink(missing_ok=True)

    def file(self, name: str) -> Path | None:
        """The path of a file in the folder; None if nothing is written."""
        return self.path / name if self.path else None

    def write_trace(self, trace: Trace) -> None:
        """Write a trace that was made in memory."""
        if self.path:
            writer = TraceWriter(self.path / "trace.arrow", 0)
            writer.append(trace.rows)
            writer.close()

    def write(self, record: RunRecord) -> None:
        """Replace run.json. The first record reserves room for the last one, should the disk be full then."""
        if self.path is None:
            return
        file, text = self.path / "run.json", json_text(record.as_dict()).encode()
        with writing(self.path):
            if record.status == Status.RUNNING:
                self._reserve(file, len(text))
            with draft_of(file, "new" if record.status != Status.RUNNING else "first") as draft:
                write_over(draft, text)

    def _reserve(self, file: Path, size: int) -> None:
        """Make the draft of the last record, of blanks."""
        draft = file.with_name(file.name + ".new")
        try:
            draft.write_bytes(b" " * (size + RESERVED))
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def write_over(file: Path, content: bytes) -> None:
    """Write a file; where it exists, into the room that it has, so that a full disk does not matter."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(descriptor, "r+b", buffering=0) as opened:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[opened.write(remaining) :]
        opened.truncate()


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Raise RunFailed with advice if the block cannot write into a run's folder, as on a full disk."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError, and leaves the reason in its cause
        reason = getattr(error, "strerror", None) or str(error)
        raise RunFailed(
            f"the run's folder {path} cannot be written: {reason}; make room, or give another (folder=, --runs)"
        ) from error


def new_folder(base: Path, name: str) -> Path:
    """Create a folder below `base` that no other run has. Of runs that begin in the same second each gets its own."""
    stamp, name = time.strftime("%Y%m%d-%H%M%S"), file_name(name)
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
def unless_begun(path: Path | None) -> Iterator[None]:
    """Remove a new folder of a run again, with all that is in it, if an error comes before its run.json is there."""
    try:
        yield
    except BaseException:
        if path is not None and not (path / "run.json").exists():
            shutil.rmtree(path, ignore_errors=True)
        raise


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
