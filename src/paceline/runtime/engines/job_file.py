"""The job file in a run's folder, from which the run is resumed or replayed."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.errors import JobError, RunFolderError
from paceline.runtime.engines.own_files import warn_of_changes
from paceline.runtime.runs.folder import RunFolder, writing
from paceline.runtime.runs.json_files import draft_of
from paceline.runtime.runs.record import read_record
from paceline.training.gradients.pickling import pack
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import arguments_hint, be_program, load_job, package_of
from paceline.training.jobs.trust import announce_code

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
