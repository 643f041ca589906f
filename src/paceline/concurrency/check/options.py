"""The checker's options, from the command line or pyproject.toml, and the files that a run checks."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paceline.concurrency.check.reporting.findings import LOWEST_FIRST, UNUSED
from paceline.concurrency.check.rules import RULES, as_text, own_rules, read
from paceline.concurrency.check.syntax.source import UNREADABLE
from paceline.errors import UsageError, suggest

# Not programs of the project, and passed over without a word.
EXCLUDED_FOLDERS = (
    ".git",
    ".hg",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".tox",
    ".nox",
    ".eggs",
)
# Passed over, and counted, unless they are packages.
OUTPUT_FOLDERS = ("build", "dist")


@dataclass(frozen=True)
class Options:
    """The options; each field is a key of the table, with dashes for underscores."""

    select: tuple[str, ...] = ("PC",)
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_rank: str = LOWEST_FIRST[0]
    everything: bool = False  # what the models doubt as well
    min_confidence: float = 0.2  # deprecated; what is hardly a bug is hidden as well, see benchmarks/checker
    baseline: str = ""
    feedback: str = ""
    libraries: tuple[str, ...] = ()  # files with what calls of other libraries wait for
    rules: tuple[dict[str, Any], ...] = ()  # rules of the project's own, as rows
    budget: int = 0  # lines that are walked at most, the most promising files first; 0 for all
    cache: bool = True
    jobs: int = 0  # processes; 0 for one per CPU in a large tree

    @property
    def least(self) -> float:
        """The value of the model below which findings are hidden; 0 hides none."""
        return 0.0 if self.everything else self.min_confidence

    def includes(self, code: str) -> bool:
        """Whether findings of this rule are reported; a choice of rules makes no unreadable file a clean one."""
        chosen = code.startswith(self.select) or code == UNREADABLE
        return chosen and not (self.ignore and code.startswith(self.ignore))


def read_options(start: Path, **overrides: Any) -> Options:
    """The table of the nearest pyproject.toml, overridden by the given options; None stands for one not given."""
    table = _table(start)
    fields = {field.name: field for field in dataclasses.fields(Options)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise UsageError(f"[tool.paceline.check] has no key {key!r}: {suggest(name, fields)}")
        values[name] = tuple(value) if isinstance(value, list) else value
    values.update({name: value for name, value in overrides.items() if value is not None})
    options = Options(**values)
    if options.min_rank not in LOWEST_FIRST:
        raise UsageError(f"min-rank is {options.min_rank!r}. It is one of {', '.join(LOWEST_FIRST)}")
    own = [rule.code for rule in own_rules(as_text(options.rules))]
    for code in (*options.select, *options.ignore):
        if not any(known_code.startswith(code) for known_code in (*RULES, *own, UNREADABLE, UNUSED)):
            raise UsageError(f"no rule begins with {code!r}: {suggest(code, RULES)}")
    return options


def parse_codes(text: str | None) -> tuple[str, ...] | None:
    """Split `PC1,PC501` at its commas."""
    return None if text is None else tuple(code.strip() for code in text.split(",") if code.strip())


def _table(start: Path) -> dict[str, Any]:
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                table = read(file).get("tool", {}).get("paceline", {}).get("check", {})
            except ValueError as error:
                raise UsageError(f"{file} is not valid TOML: {error}") from None
            if not isinstance(table, dict):
                raise UsageError(f"[tool.paceline.check] of {file} is not a table")
            return table
    return {}


# Chooses the files of a run: Python files under the given paths, and what is passed over, with the reason.

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
