"""Chooses the files of a run: Python files under the given paths, and what is passed over, with the reason."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.check.options import EXCLUDED_FOLDERS, OUTPUT_FOLDERS
from paceline.errors import UsageError

LARGEST = 4 << 20  # bytes; no program that people write is larger, and generated tables take minutes to check

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Skipped(NamedTuple):
    """A file or folder that was not checked, and why."""

    path: str
    why: str


@dataclass
class Chosen:
    """The files to check, each once, and everything under the given paths that is passed over."""

    files: list[Path] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    #: Folders that cannot be read: nothing is known of what is in them.
    unreadable: list[Skipped] = field(default_factory=list)


def choose_files(paths: Iterable[Path], exclude: tuple[str, ...] = ()) -> Chosen:
    """Choose every Python file, in a fixed order; a file that is given by name needs no .py ending."""
    chosen = Chosen()
    visited: set[str] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"{path} does not exist. Give files or folders to check, such as `paceline check src`")
        if excluded(path, exclude):
            chosen.skipped.append(Skipped(path.as_posix(), "excluded"))
            continue
        for file in _walk(path, exclude, chosen) if path.is_dir() else [path]:
            if (key := os.path.realpath(file)) in visited:
                continue
            visited.add(key)
            if why := _not_a_program(file):
                chosen.skipped.append(Skipped(file.as_posix(), why))
            else:
                chosen.files.append(file)
    return chosen


def _not_a_program(file: Path) -> str:
    """Why the file is not opened; nothing where it is to be read. Opening a named pipe would wait for a writer."""
    try:
        status = file.stat()
    except OSError:
        return ""  # the reader says what is wrong with it
    if status.st_size > LARGEST:
        return f"{status.st_size >> 20} MiB, more than {LARGEST >> 20}"
    return next((kind for is_kind, kind in _KINDS if is_kind(status.st_mode)), "")


def _walk(folder: Path, exclude: tuple[str, ...], chosen: Chosen) -> Iterator[Path]:
    """Yield the Python files under a folder. Links to folders are not followed, so a link to itself does not matter."""

    def unreadable(error: OSError) -> None:
        chosen.unreadable.append(Skipped(Path(error.filename).as_posix(), f"cannot be read: {error.strerror}"))

    for at, folders, files in os.walk(folder, onerror=unreadable):
        entered = []
        for name in sorted(folders):
            if why := _why_not_entered(Path(at, name), exclude):
                chosen.skipped.append(Skipped(Path(at, name).as_posix(), why))
            elif name not in EXCLUDED_FOLDERS:
                entered.append(name)
        folders[:] = entered
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            if excluded(Path(at, name), exclude):
                chosen.skipped.append(Skipped(Path(at, name).as_posix(), "excluded"))
            else:
                yield Path(at, name)


def _why_not_entered(folder: Path, exclude: tuple[str, ...]) -> str:
    """Why a folder with programs is passed over. A package called `build` is no output of a build."""
    if excluded(folder, exclude):
        return "excluded"
    if folder.name in OUTPUT_FOLDERS and not (folder / "__init__.py").exists():
        return "output of a build, by its name"
    return ""


def excluded(path: Path, exclude: tuple[str, ...]) -> bool:
    """Whether one of these patterns matches a path, its last name or its end."""
    text = path.as_posix()
    return any(
        fnmatch.fnmatch(text, p) or fnmatch.fnmatch(path.name, p) or f"/{text}".endswith(f"/{p}") for p in exclude
    )
