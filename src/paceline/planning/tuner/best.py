"""The best configuration as a job file, which `paceline train` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paceline.errors import TuningError
from paceline.planning.tuner.space import Configuration
from paceline.planning.tuner.suggested import NamedArguments, takes_names
from paceline.planning.tuner.trial import Trial
from paceline.planning.tuner.varied import VariedJob
from paceline.training.jobs.job import Job
from paceline.training.jobs.loading import load_maker
from paceline.training.jobs.pickling import announce_code, pack, unpack

SMALL = 64 << 20  # bytes of a pickled job up to which it is kept beside the file
TEXT = '''\
"""The best configuration that a tuning found{about}. Train it: paceline train {name}"""

from pathlib import Path

from paceline.planning.tuner.best import tuned_job

configuration = {configuration!r}

job = tuned_job({job}, configuration, {rest})
'''


def tuned_job(
    where: str | Path,
    configuration: Configuration,
    epochs: int | None = None,
    data_dir: str | None = None,
    compute: str | None = None,
    job_args: str | None = None,
) -> Job:
    """Return the job of a configuration: `where` names it as on the command line, or is a file that a tuning wrote."""
    make: Callable[[Trial], Job]
    if isinstance(where, Path):
        if not where.is_file():
            raise TuningError(f"{where}, which a tuning wrote beside this file, is not there")
        announce_code(where)
        make = unpack(where.read_bytes())
    else:
        make = maker_of(load_maker(where, data_dir, job_args), configuration)
    job = make(Trial(0, dict(configuration), 0, 1))
    changes = {"epochs": epochs, "compute": compute}
    return job.with_(**{name: value for name, value in changes.items() if value is not None})


def maker_of(factory: Any, names: Iterable[str]) -> Callable[[Trial], Job]:
    """Return a function of a trial: as it is, of a plain job, or of a function that takes the names of the space."""
    if isinstance(factory, Job):
        return VariedJob(factory)
    make: Callable[[Trial], Job] = NamedArguments(factory) if takes_names(factory, names) else factory
    return make


def write_best(
    folder: Path,
    make: Any,
    origin: str,
    configuration: Configuration,
    epochs: int,
    about: str,
    rest: dict[str, Any],
) -> Path | None:
    """Write best.py into a tuning's folder; None if its job comes from no file and is too large to be kept."""
    job = repr(origin)
    if not origin:
        pickle_file = folder / "job.pickle"
        try:
            packed = pack(make)
        except Exception:
            return None
        if len(packed) > SMALL:
            return None
        pickle_file.write_bytes(packed)
        job = "Path(__file__).with_name('job.pickle')"
    file = folder / "best.py"
    changes = {"epochs": epochs, **rest}
    text = TEXT.format(
        about=f" ({about})",
        name=file.name,
        configuration=configuration,
        job=job,
        rest=", ".join(f"{name}={value!r}" for name, value in changes.items() if value is not None),
    )
    file.write_text(text if not origin else text.replace("from pathlib import Path\n\n", ""))
    return file
