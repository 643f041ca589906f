"""The job file in a run's folder, and what has changed since: the user's source files, the arithmetic of plans."""

from __future__ import annotations

import pickle
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import paceline
from paceline.errors import JobError, JobWarning, RunFolderError
from paceline.plans.plan import Plan
from paceline.runtime.runs.record import RunFolder, RunRecord, read_record, writing
from paceline.runtime.runs.schema import draft_of
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import arguments_hint, be_program, load_job, package_of
from paceline.training.jobs.pickling import announce_code, pack

#: What to do where a folder has no job that can be read.
GIVE = "give the job, as in `paceline train JOB --resume RUN`, or in Python paceline.replay(RUN, job=job)"
SMALL = 64 << 20  # bytes of tensors up to which they are copied into the run's folder


def save_job_file(folder: RunFolder, job: Job, resumable: bool = False) -> None:
    """Write the job without large tensors, which are read again from `origin`.

    Test data are written only if the run is `resumable`, since replays do not evaluate.
    """
    file = folder.file("job.pickle")
    if file is None:
        return
    slim = job.with_(data=_if_small(job.data), test=_if_small(job.test) if resumable else None)
    try:
        pickled = pack(slim)
    except Exception as error:
        raise JobError(
            f"the job cannot be pickled: {error}; every worker gets a copy of it: create locks, open files and "
            "connections inside the functions that use them"
        ) from error
    with writing(folder.path), draft_of(file) as draft:
        draft.write_bytes(pickled)
    source, copy = Path(job.origin.partition(":")[0]), folder.file("source.py")
    if source.suffix == ".py" and source.is_file() and copy is not None:
        with writing(folder.path):
            shutil.copy(source, copy)


def load_job_file(path: Path, data: Any = None, resumable: bool = False) -> Job:
    """Read the job of a run's folder, and data that were too large for it from where the job came from."""
    if (path / "job.pickle").is_file():
        announce_code(path / "job.pickle")
    try:
        job = _unpickled(path)
    except FileNotFoundError:
        raise RunFolderError(f"{path} has no job.pickle; {GIVE}") from None
    except SystemExit as end:
        raise RunFolderError(f"a file that the job of {path} imports ends the program: {arguments_hint(end)}") from end
    except Exception as error:  # a damaged file, or a class that was moved: unpickling raises anything
        fault = f"{type(error).__name__}: {error}"
        raise RunFolderError(f"{path / 'job.pickle'} cannot be read: {fault}; {GIVE}") from error
    tested = resumable and read_record(path).job.test_samples > 0
    if data is not None:
        job = job.with_(data=data)
    if job.data is not None and (job.test is not None or not tested):
        return job
    if not job.origin:
        raise RunFolderError(
            f"{path} did not keep its data, which is large; give it as data=(x, y), or the whole job as job="
        )
    again = load_job(job.origin, job_args=read_record(path).job.job_args)
    return job.with_(data=again.data if job.data is None else job.data, test=again.test if tested else None)


def _unpickled(path: Path) -> Job:
    """Read the pickle; modules it refers to may lie beside the file that the job came from, or where the user is.

    They are imported as by the program that the run was.
    """
    if (path / "run.json").is_file():
        record = read_record(path)
        program, _, _ = record.job.origin.partition(":")
        be_program(program or sys.argv[0], record.job.arguments)
        warn_of_changes(record, but=program)  # which is pickled by value
    try:
        return _read(path)
    except ModuleNotFoundError:
        origin, _, _ = read_record(path).job.origin.partition(":")
        file = Path(origin).absolute()
        sys.path[:0] = dict.fromkeys([str(file.parent), str(package_of(file)[0])] if origin else [str(Path.cwd())])
        return _read(path)


def _read(path: Path) -> Job:
    with (path / "job.pickle").open("rb") as file:
        job: Job = pickle.load(file)
    return job


def _if_small(data: Any) -> Any:
    return None if sum(t.nbytes for t in _tensors(data)) > SMALL else data


def _tensors(data: Any) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data]
    return [t for t in data if isinstance(t, Tensor)] if isinstance(data, tuple | list) else []


# What changed in the arithmetic of plans, so that a replay can say why an older run has other bits now.

# The user's own source files that a run has loaded, and which of them are others now.

INSTALLED = ("site-packages", "dist-packages")  # folders of what is installed, in whichever environment
#: Folders of Python and of Paceline itself.
OTHERS = tuple(
    f"{folder}/"
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *map(str, paceline.__path__))
)


def own_files() -> dict[str, str]:
    """Return the SHA-256 of each file of the user's own from which a module was imported, by its path.

    The script itself is left out: what a run needs of it is pickled by value.
    """
    names = {
        str(module.__file__)
        for name, module in tuple(sys.modules.items())
        if name != "__main__" and isinstance(getattr(module, "__file__", None), str)
    }
    local_names = (name for name in names if name.endswith(".py") and not name.startswith(OTHERS))
    files = {name: Path(name) for name in sorted(local_names) if not set(INSTALLED) & set(Path(name).parts)}
    return {str(file.resolve()): sha256(file.read_bytes()).hexdigest() for file in files.values() if file.is_file()}


def changed_files(record: RunRecord, but: str = "") -> list[str]:
    """Return the files that a run has loaded and that have another content now, without one that it does not need."""
    files = ((Path(name), digest) for name, digest in record.files.items() if name != but)
    return [str(file) for file, digest in files if file.is_file() and sha256(file.read_bytes()).hexdigest() != digest]


def warn_of_changes(record: RunRecord, but: str = "") -> None:
    """Name the files that have changed since a run was recorded, before anything of them is computed."""
    if changed := changed_files(record, but):
        warnings.warn(changed_files_message(changed), JobWarning, stacklevel=4)


def changed_files_message(changed: Sequence[str]) -> str:
    """Say which files have changed, and what to do about it."""
    have, them = ("has", "it") if len(changed) == 1 else ("have", "them")
    return (
        f"{', '.join(changed)} {have} changed since the run was recorded, which may make it another training; restore "
        f"{them} as {'it was' if len(changed) == 1 else 'they were'} to get the recorded bits"
    )


class Change(NamedTuple):
    """A change after which some plans round differently."""

    #: The `arithmetic_version` of runs from then on.
    version: int
    #: The methods whose trained bits it changed.
    methods: frozenset[str]
    what: str


CHANGES = (
    Change(
        2,
        frozenset({"LocalSteps", "Gossip"}),
        "a worker that steps on its own chunk takes the chunk's mean gradient as it is, which was before multiplied by "
        "the chunk's share of the batch and divided by it again",
    ),
)
ARITHMETIC_VERSION = CHANGES[-1].version


def why_bits_differ(record: RunRecord, plan: Plan) -> str:
    """Return the likely cause where a replay has other bits than its record."""
    since = [c for c in CHANGES if c.version > record.arithmetic_version and plan.method.name in c.methods]
    if not since and (changed := changed_files(record, record.job.origin.partition(":")[0])):
        return changed_files_message(changed)
    if not since:
        return (
            "Does the job draw random numbers that the seed does not determine, or has its data, loss or "
            "batch_transform a state that changes from call to call, of which each worker had its own?"
        )
    changes = "; ".join(f"since version {c.version}, {c.what}" for c in since)
    return (
        f"The run was recorded with arithmetic version {record.arithmetic_version}, this Paceline has "
        f"{ARITHMETIC_VERSION}: {changes}. To get the recorded bits, replay it with the Paceline that recorded it "
        f"(started {record.started[:10]})"
    )
