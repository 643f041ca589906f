"""Names a full disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import MachineError


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Raise `MachineError` with the way out where the block finds the disk of a folder full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MachineError(
            f"the disk of {folder} is full; make room and give the command again, which goes on where it stopped"
        ) from error
