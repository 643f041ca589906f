"""The user's own source files that a run has loaded, and which of them are others now."""

from __future__ import annotations

import sys
import sysconfig
import warnings
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import paceline
from paceline.errors import JobWarning
from paceline.runtime.runs.record import RunRecord

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
    files = ((Path(name), known) for name, known in record.files.items() if name != but)
    return [str(file) for file, known in files if file.is_file() and sha256(file.read_bytes()).hexdigest() != known]


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
