"""Where a folder of shards can be written: names a full disk, and what would be written elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import DataError, MachineError


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Raise `MachineError` with the way out where the block finds the disk of a folder full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"{folder} cannot be written: {error}; give another folder") from error
        raise MachineError(
            f"the disk of {folder} is full; make room and give the command again, which goes on where it stopped"
        ) from error


def refuse_links(folder: Path) -> None:
    """Raise `DataError` if what is written below a folder would go elsewhere: it may be another person's."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; give a folder, which need not exist")
    for each in folder.rglob("*"):
        if each.is_symlink():
            raise DataError(f"{each} is a link, and rows would be written to where it leads; give another folder")
