"""Job files in TOML: a job of Python with other settings, for what is data rather than code.

[job]
from = "my_job.py"          # or my_job.py:name, or a built-in job; relative to this file
epochs = 20
precision = "bf16-mixed"

[job.optimizer]
name = "AdamW"              # of torch.optim
lr = 1e-3

[job.lr_scheduler]
name = "CosineAnnealingLR"  # of torch.optim.lr_scheduler
T_max = 100
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from paceline.errors import JobError, suggest
from paceline.training.jobs.job import Job

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
