"""Find the job that the command line names: a built-in one, or one in a Python or TOML file."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch

from paceline.errors import JobError, PacelineError, suggest
from paceline.training.jobs.built_ins import BUILT_IN, built_in, not_read
from paceline.training.jobs.job import Job


def load_job(where: str, data_dir: str | None = None, job_args: str | None = None) -> Job:
    """Load JOB as the command line names it: a built-in job, `file.py`, `file.py:name`, or `file.toml`."""
    maker = load_maker(where, data_dir, job_args, by_defaults=True)
    if isinstance(maker, Job):
        return maker
    raise JobError(f"{where} is a function with parameters, which `paceline tune` calls; a training needs a Job")


def load_maker(
    where: str, data_dir: str | None = None, job_args: str | None = None, by_defaults: bool = False
) -> Job | Callable[..., Any]:
    """Load a job as `load_job` does, or a function that makes a job for each trial of a tuning.

    A Python file is a program with the arguments `job_args`, in this process from now on and in those that it starts:
    whatever the job imports later may parse them, too. `by_defaults`: call a function whose parameters have defaults.
    """
    path, _, name = where.partition(":")
    if path.endswith(".toml"):
        return load_toml(path, partial(load_job, data_dir=data_dir, job_args=job_args))
    if not path.endswith(".py"):
        if path not in BUILT_IN:
            if os.path.exists(path):
                what = "a folder" if os.path.isdir(path) else "neither a Python nor a TOML file"
                raise JobError(f"{path} is {what}; give a job file, as in my_job.py, or a built-in job, as in digits")
            near = f"did you mean {path}.py? " if os.path.isfile(f"{path}.py") else ""
            raise JobError(
                f"there is no job {where!r}; {near or suggest(path, BUILT_IN) + ', or a path to a Python or TOML file'}"
            )
        if name:
            raise JobError(f"{path} is a built-in job, in which there is no {name!r}; give {path} alone")
        if job_args is not None:
            raise JobError(f"{path} is a built-in job, which has no arguments: --job-args is for Python files")
        return built_in(path, data_dir)
    if data_dir is not None:
        raise not_read(path, data_dir)
    file = Path(path).resolve()
    module, name = _module(path, file, _words(job_args)), name or "job"
    job = getattr(module, name, None)
    if inspect.isfunction(job):
        parameters = inspect.signature(job).parameters.values()
        if all(by_defaults and p.default is not p.empty for p in parameters):
            job = _made(path, name, job)
    if isinstance(job, Job):
        return job.with_(name=file.stem if job.name == "job" else job.name, origin=f"{file}:{name}")
    if callable(job):
        return job
    job_names = [key for key, value in vars(module).items() if isinstance(value, Job)]
    if not job_names:
        guarded = ", outside `if __name__`, as the file is imported" * ("__main__" in file.read_text(encoding="utf-8"))
        raise JobError(
            f"{path} defines no job; a job file has a variable, as in job = paceline.Job(...){guarded}"
            + _script_hint(path, file)
        )
    raise JobError(f"{path} has no job called {name!r}; it has {', '.join(job_names)}")


def _made(path: str, name: str, function: Callable[[], Any]) -> Job:
    """Return the job that a function makes which needs no arguments."""
    try:
        job = function()
    except PacelineError as error:
        raise JobError(f"{path}: {name}() failed: {error}") from error
    except Exception as error:
        raise JobError(f"{path}: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(job, Job):
        raise JobError(f"{path}: {name}() returns {type(job).__name__}, and has to return a paceline.Job")
    return job


def package_of(file: Path) -> tuple[Path, str]:
    """Return the folder that a user's file imports from, and the package that the file belongs to, or ""."""
    folder, names = file.parent, list[str]()
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def be_program(program: str, arguments: Sequence[str]) -> None:
    """Let the user's code, here and in processes that are started from now on, have this command line."""
    sys.argv = [program, *arguments]


@contextmanager
def own_arguments() -> Iterator[None]:
    """Restore the command line of the caller's program at the end of the block."""
    before = sys.argv
    try:
        yield
    finally:
        sys.argv = before


def arguments_hint(end: SystemExit) -> str:
    """Describe how a user's file has ended the program, and with which arguments."""
    return (
        f"{f'SystemExit: {end}'.rstrip(': ')}, with sys.argv == {sys.argv}; a job file only defines a job: leave out "
        'sys.exit(), and give what parse_args() requires by --job-args "...", or defaults'
    )


def _words(job_args: str | None) -> list[str]:
    try:
        return shlex.split(job_args or "")
    except ValueError as error:
        raise JobError(f"--job-args {job_args!r}: {error}; quote it as in --job-args \"--name 'two words'\"") from error


def _module(path: str, file: Path, arguments: Sequence[str]) -> ModuleType:
    """Import a user's file, as a script with these arguments."""
    if not file.is_file():
        raise JobError(f"there is no file {path}")
    if file.stem in sys.stdlib_module_names:
        raise JobError(
            f"{path} has the name of a module of Python's standard library, in whose place other modules would import "
            f"it; rename it, as to my_{file.name}"
        )
    root, package = package_of(file)
    spec = importlib.util.spec_from_file_location(f"{package}.paceline_job_{file.stem}".lstrip("."), file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path[:0] = dict.fromkeys((str(file.parent), str(root)))
    cloudpickle.register_pickle_by_value(module)
    be_program(str(file), arguments)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise JobError(f"{path} does not parse: {where}{error.msg}") from error
    except (Exception, SystemExit) as error:
        line = next(
            (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(file)), 0
        )
        if isinstance(error, PacelineError):
            raise JobError(f"{path}, line {line}: {error}") from error
        if isinstance(error, SystemExit):
            says = arguments_hint(error)
            raise JobError(f"{path} ends the program when it is read, in line {line}: {says}") from error
        what = f"{type(error).__name__}: {error}{_script_hint(path, file)}"
        raise JobError(f"{path} fails when it is read, in line {line}: {what}") from error
    return module


def _script_hint(path: str, file: Path) -> str:
    """Return the end of a message about a file that trains by torch.distributed itself; empty for others."""
    if "init_process_group" not in file.read_text(encoding="utf-8"):
        return ""
    return f". It uses torch.distributed itself: to compare it as it is, paceline compare --script {path}"


# Job files in TOML: a job of Python with other settings, for what is data rather than code.
#
# [job]
# from = "my_job.py"          # or my_job.py:name, or a built-in job; relative to this file
# epochs = 20
# precision = "bf16-mixed"
#
# [job.optimizer]
# name = "AdamW"              # of torch.optim
# lr = 1e-3
#
# [job.lr_scheduler]
# name = "CosineAnnealingLR"  # of torch.optim.lr_scheduler
# T_max = 100

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Fields of a job that a TOML file may set, and the types of their values.
FIELDS: dict[str, tuple[type, ...]] = {
    "accumulate_grad_batches": (int,),
    "batch_size": (int,),
    "compute": (str,),
    "device": (str,),
    "epochs": (int,),
    "evaluate_every": (int,),
    "gradient_clip_norm": (int, float),
    "name": (str,),
    "num_workers": (int,),
    "on_nan": (str,),
    "precision": (str,),
    "seed": (int,),
    "shuffle": (bool,),
}
#: Tables that name a class of PyTorch and its arguments.
TABLES: dict[str, ModuleType] = {"optimizer": torch.optim, "lr_scheduler": torch.optim.lr_scheduler}


def load_toml(path: str, load: Callable[[str], Job]) -> Job:
    """Return the job that the file starts `from`, as `load` finds it, with the file's settings."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JobError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobError(f"{path} does not parse: {error}") from error
    unknown = [name for name in tables if name != "job"]
    if unknown or not isinstance(tables.get("job"), dict):
        what = f"has a table [{unknown[0]}]" if unknown else "has no table [job]"
        raise JobError(f"{path} {what}; a job file has one table, [job], with from = a Python file or a built-in job")
    settings = dict(tables["job"])
    start = settings.pop("from", None)
    if not isinstance(start, str):
        raise JobError(f"{path} does not say which job it starts from; give from = a Python file or a built-in job")
    if start.partition(":")[0].endswith((".py", ".toml")):
        start = str(Path(path).parent / start)
    changes = {name: _value(path, name, value) for name, value in settings.items()}
    try:
        job = load(start)
    except RecursionError:
        raise JobError(f"{path} starts from itself; give from = a Python file or a built-in job") from None
    return job.with_(**{"name": Path(path).stem, **changes})


def _value(path: str, name: str, value: Any) -> Any:
    if name in TABLES:
        return _factory(path, name, value)
    if name not in FIELDS:
        raise JobError(f"{path}: a job file has no field {name!r}; {suggest(name, ['from', *FIELDS, *TABLES])}")
    if not isinstance(value, FIELDS[name]) or (isinstance(value, bool) and bool not in FIELDS[name]):
        raise JobError(f"{path}: {name} = {value!r} is not of type {FIELDS[name][-1].__name__}")
    return value


def _factory(path: str, field: str, table: Any) -> Callable[..., Any]:
    """Return a function that makes the optimizer or the scheduler that a table names."""
    module = TABLES[field]
    options = dict(table) if isinstance(table, dict) else {}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise JobError(f'{path}: {field} is a table with the name of a class in {module.__name__}, as in name = "SGD"')
    kind = getattr(module, name, None)
    if not isinstance(kind, type):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise JobError(f"{path}: {module.__name__} has no class {name!r}; {suggest(name, classes)}")
    return partial(kind, **options)
