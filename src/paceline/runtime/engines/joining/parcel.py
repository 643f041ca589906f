"""What travels to a machine that joins: the user's files, the packages that it lacks, then the job, by value."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from paceline.errors import FrameError, JobError
from paceline.runtime.engines.job_file import INSTALLED, OTHERS, own_files
from paceline.runtime.links.pairing.exchange import Line
from paceline.version import __version__

MOST = 256 << 20  # bytes that are sent to a machine that joins
CHUNK = 1 << 20
FILES = 10_000
PATIENCE = 60.0  # seconds that a chunk may take

#: Called with the bytes that have come, and all of them.
Progress = Callable[[int, int], None]


@dataclass
class Parcel:
    """Files by their paths below the folder of the job on the other machine, and the packed job."""

    files: dict[str, Path] = field(default_factory=dict)
    #: Files that the job opens, and that lie elsewhere: the other machine must have its own.
    elsewhere: list[str] = field(default_factory=list)
    job: bytes = b""

    @classmethod
    def of(cls, opened: Iterable[Path], job: bytes) -> Parcel:
        """Collect the modules that the job has imported, and files that it has opened.

        Raises:
            JobError: it is too much.
        """
        parcel = cls(job=job)
        for module in map(Path, own_files()):
            if (place := _below(module, _import_folders())) is not None:
                parcel.files[place] = module
        folders = [Path.cwd(), *_import_folders()]
        for file in opened:
            if (place := _below(file.resolve(), folders)) is not None:
                parcel.files[place] = file
            else:
                parcel.elsewhere.append(str(file))
        if parcel.bytes > MOST or len(parcel.files) > FILES:
            raise JobError(
                f"the job and its files are {parcel.bytes >> 20:,} MB in {len(parcel.files):,} files, and at most "
                f"{MOST >> 20} MB in {FILES:,} are sent to a machine that joins: put the data where every machine "
                "finds them by the same absolute path, as in a folder of shards (paceline prepare)"
            )
        return parcel

    @property
    def modules(self) -> list[Path]:
        """The source files in it."""
        return [file for place, file in self.files.items() if place.endswith(".py")]

    @property
    def bytes(self) -> int:
        """How much travels."""
        return len(self.job) + sum(file.stat().st_size for file in self.files.values())

    def send(self, line: Line) -> None:
        contents = {place: file.read_bytes() for place, file in self.files.items()}
        line.allow(PATIENCE)
        line.send_json({"parts": len(contents) + 1, "bytes": sum(map(len, contents.values())) + len(self.job)})
        for place, content in (*contents.items(), ("", self.job)):
            line.send_json({"place": place, "bytes": len(content)})
            for at in range(0, len(content), CHUNK):
                line.allow(PATIENCE)
                line.send(content[at : at + CHUNK])


def receive_parcel(line: Line, folder: Path, progress: Progress) -> bytes:
    """Write the files of a parcel into a folder, and return the packed job.

    Raises:
        FrameError: it is too much, or a file would lie outside of the folder.
    """
    line.allow(PATIENCE)
    head = line.receive_json()
    total, received, job = int(head["bytes"]), 0, b""
    if total > MOST + CHUNK or int(head["parts"]) > FILES + 1:
        raise FrameError("length", f"the other machine announces {total >> 20:,} MB; at most {MOST >> 20} MB are taken")
    for _ in range(int(head["parts"])):
        part = line.receive_json()
        size, content = int(part["bytes"]), bytearray()
        while len(content) < size:
            line.allow(PATIENCE)
            content += (chunk := line.receive(min(CHUNK, total - received)))
            received += len(chunk)
            progress(received, total)
        if not part["place"]:
            job = bytes(content)
            continue
        file = _within(folder, str(part["place"]))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return job


def _within(folder: Path, place: str) -> Path:
    pure = PurePosixPath(place)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in place:
        raise FrameError(
            "body", f"the other machine sends a file that would lie outside of the job's folder: {place!r}"
        )
    return folder.joinpath(*pure.parts)


def _import_folders() -> list[Path]:
    """Return the folders from which the user's own modules are imported, the innermost first."""
    folders = {Path(os.path.abspath(each or ".")) for each in sys.path if not each.endswith(".zip")}
    return sorted(folders, key=lambda folder: len(folder.parts), reverse=True)


def _below(file: Path, folders: Iterable[Path]) -> str | None:
    """Return the path of a file below the first of these folders that it lies in."""
    inside = next((folder for folder in folders if file.is_relative_to(folder)), None)
    return file.relative_to(inside).as_posix() if inside is not None else None


# The files that the user's program opens to read, from a moment on: the small files that a job needs where it travels.
# Python tells of every file that it opens and of every folder that it lists (audit events). A folder that is listed
# counts as all of its files, since a data set that was listed will open them later.

#: Where programs look for what is the machine's own.
SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/run/", "/usr/", "/var/", "/tmp/pymp-", "/tmp/paceline-")
CODE = (".py", ".pyc", ".so", ".pth")


_files: set[str] = set()
_folders: set[str] = set()
_watches = False


def watch_files(joinable: bool = True) -> None:
    """Take note of what is opened from now on, if machines may join to which it goes."""
    global _watches
    if not joinable:
        return
    if not _watches:
        sys.addaudithook(_note)  # which stays until the process ends
    _watches = True


def opened() -> list[Path]:
    """Return the files that exist, without code, hidden ones and what belongs to the system; and watch no longer."""
    global _watches
    _watches = False
    code = {os.path.abspath(folder or ".") for folder in sys.path} | _folders_of_modules()
    listed = [Path(folder) for folder in _folders if folder not in code and _of_user(folder)]
    files = {*map(Path, _files), *(each for folder in listed if folder.is_dir() for each in folder.iterdir())}
    return sorted(each for each in files if _of_user(str(each)) and each.is_file())


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watches:
        return
    if event == "open" and isinstance(arguments[0], str) and _reads(arguments[2]):
        _files.add(os.path.abspath(arguments[0]))
    elif event in ("os.listdir", "os.scandir") and isinstance(arguments[0], str):
        _folders.add(os.path.abspath(arguments[0]))


def _reads(flags: Any) -> bool:
    return isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY


def _of_user(path: str) -> bool:
    parts = Path(path).parts
    hidden = any(part.startswith(".") or part in INSTALLED or part == "__pycache__" for part in parts)
    return not (hidden or path.startswith((*SYSTEM, *OTHERS)) or path.endswith(CODE))


def _folders_of_modules() -> set[str]:
    files = (getattr(module, "__file__", None) for module in tuple(sys.modules.values()))
    return {os.path.dirname(os.path.abspath(file)) for file in files if isinstance(file, str)}


# The packages that a job imports, and those that another machine lacks or has in another version.

#: Which must be the same on all machines: what travels is code of this Python, and gradients of this PyTorch.
SAME = ("paceline", "torch")


class Package(NamedTuple):
    """An installed package that a file imports."""

    #: As it is imported, and as pip calls it.
    module: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version.partition('+')[0]}"


def python() -> str:
    """Return the version of Python, as far as code of one runs on the other."""
    return ".".join(map(str, sys.version_info[:2]))


def imported_packages(files: Iterable[Path]) -> list[Package]:
    """Return the installed packages that source files import, and those that every node needs."""
    names = set(SAME)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    distributions = packages_distributions()
    return [_package(name, distributions) for name in sorted(names) if name in SAME or name in distributions]


def _package(name: str, known: Mapping[str, list[str]]) -> Package:
    distribution = known.get(name, [name])[0]
    return Package(name, distribution, _version(name, distribution))


def _version(name: str, distribution: str) -> str:
    if name == "paceline":
        return __version__
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def lacking(packages: Iterable[Package], needed_python: str, host: str) -> list[str]:
    """Return what is wrong with this machine, a line each, for a run on `host`; none if it can take part."""
    lines = []
    if needed_python != python():
        lines.append(f"Python {needed_python} is needed, as {host} has it, and this is Python {python()}")
    for each in packages:
        if importlib.util.find_spec(each.module) is None:
            lines.append(f"{each.module} is not installed here: pip install {each}")
        elif each.module in SAME and (local := _version(each.module, each.distribution)) != each.version:
            lines.append(f"{each.module} is {local} here and {each.version} on {host}: pip install {each}")
    return lines


def different(packages: Iterable[Package]) -> list[str]:
    """Return the packages that this machine has in another version, which may do."""
    pairs = ((each, _version(each.module, each.distribution)) for each in packages if each.module not in SAME)
    return [
        f"{each.distribution} {installed} (there {each.version})"
        for each, installed in pairs
        if installed not in ("", each.version)
    ]
