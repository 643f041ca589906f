"""What travels to a machine that joins: the user's files, then the job itself, by value."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from paceline.errors import FrameError, JobError
from paceline.runtime.engines.own_files import own_files
from paceline.runtime.links.pairing.exchange import Line

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
    total, come, job = int(head["bytes"]), 0, b""
    if total > MOST + CHUNK or int(head["parts"]) > FILES + 1:
        raise FrameError("length", f"the other machine announces {total >> 20:,} MB; at most {MOST >> 20} MB are taken")
    for _ in range(int(head["parts"])):
        part = line.receive_json()
        size, content = int(part["bytes"]), bytearray()
        while len(content) < size:
            line.allow(PATIENCE)
            content += (chunk := line.receive(min(CHUNK, total - come)))
            come += len(chunk)
            progress(come, total)
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
