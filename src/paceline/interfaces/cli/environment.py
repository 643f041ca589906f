"""The environment variables that Paceline reads, and what is wrong with those that are set."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import UsageError

#: Variables for users; docs/reference/commands.md says what each sets.
VARIABLES = (
    "PACELINE_PLAN",
    "PACELINE_WORKERS",
    "PACELINE_ENGINE",
    "PACELINE_DEVICE",
    "PACELINE_TIMEOUT",
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
