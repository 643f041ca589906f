"""The environment of a command: the variables that Paceline reads, and the report of a failure to the launcher."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from paceline.algorithms.cluster.launchers import from_environment
from paceline.errors import UsageError

#: Variables for users; docs/reference/commands.md says what each sets.
VARIABLES = (
    "PACELINE_PLAN",
    "PACELINE_WORKERS",
    "PACELINE_ENGINE",
    "PACELINE_DEVICE",
    "PACELINE_TIMEOUT",
    "PACELINE_MAX_CPU_ISA",
    "PACELINE_RUNS",
    "PACELINE_DATA",
    "PACELINE_CACHE",
    "PACELINE_NODES",
    "PACELINE_RANK",
    "PACELINE_HEAD",
    "PACELINE_RUN",
    "PACELINE_KEYS",
    "PACELINE_TOKEN",
)
FOLDERS = {"PACELINE_DATA": "the data of the mnist jobs", "PACELINE_KEYS": "what `paceline keys` made"}
#: How much a name must be like a variable's to be that variable misspelt. What Kubernetes sets for a Service that is
#: called paceline (its host and port) is less like any of them.
ALIKE = 0.9


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise UsageError for a variable that is misspelt, or that names a folder which does not exist."""
    for name in (each for each in environ if each.startswith("PACELINE_") and each not in VARIABLES):
        if near := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=ALIKE):
            raise UsageError(f"there is no environment variable {name}; it is {near[0]}: rename it, or unset it")
    for name, content in FOLDERS.items():
        if (folder := environ.get(name)) and not Path(folder).is_dir():
            raise UsageError(f"{name}={folder!r} is not a folder; give the one with {content}, or unset it")


# What a process that a launcher started says about its failure.


def notify_torchrun(message: str, environ: Mapping[str, str] = os.environ) -> None:
    """Leave a message where torchrun looks for the root cause of a failure, as `torch.distributed.elastic` has it."""
    if file := environ.get("TORCHELASTIC_ERROR_FILE"):
        report = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps(report), encoding="utf-8")


def rank_before(environ: Mapping[str, str]) -> str:
    """Return what precedes a message of a rank other than 0, which may say the same as all others do."""
    with contextlib.suppress(UsageError):  # a variable of the launcher that is wrong: it is the message
        launched = from_environment(environ)
        if launched is not None and launched.nodes > 1 and launched.rank:
            return f"rank {launched.rank}: "
    return ""
