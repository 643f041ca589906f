"""Compares the files of a folder of shards with its manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.training.shards.manifest import Manifest, ShardFile
from paceline.training.shards.sealed import SealedList


def damaged(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each file that is missing, that is not what was written, or that does not belong here."""
    for name, split in manifest.splits.items():
        yield from _differing(
            folder, name, {file: each for shard in split.shards for file, each in shard.files.items()}
        )


def damaged_stream(folder: Path, sealed: SealedList) -> Iterator[str]:
    """Yield such a sentence for the files of the shards that are sealed; a writer may be making the next one."""
    expected = {file: each for shard in sealed.shards for file, each in shard.files.items()}
    yield from _differing(folder, "rows", expected, following=f"{len(sealed.shards):05d}.")


def _differing(folder: Path, name: str, expected: Mapping[str, ShardFile], following: str = "") -> Iterator[str]:
    for file, each in expected.items():
        path = folder / name / file
        if not path.is_file():
            yield f"{name}/{file} is missing"
        elif path.stat().st_size != each.bytes:
            yield f"{name}/{file} has {path.stat().st_size} bytes instead of {each.bytes}"
        elif digest(path) != each.sha256:
            yield f"{name}/{file} has other bytes than were written: its sha256 differs"
    for path in sorted((folder / name).glob("*")) if (folder / name).is_dir() else ():
        if path.name not in expected and not (following and path.name.startswith(following)):
            yield f"{name}/{path.name} does not belong to the folder"


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
