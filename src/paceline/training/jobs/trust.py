"""Files that run code when they are read: whose they are, and a line that says so before."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from paceline.errors import SecurityError
from paceline.names import visible


def announce_code(file: Path, code: str = "") -> None:
    """Say that reading a file runs the code in it; refuse one that another user could have written.

    Args:
        file: what is about to be read.
        code: what is run, where it is not the file itself.

    Raises:
        SecurityError: the file, or the folder in which it lies, is another user's, or all users may write to it.
    """
    user = os.geteuid()
    for each in (file.absolute().parent, file):
        status = each.stat()
        if status.st_uid != user:
            raise SecurityError(
                f"{each} belongs to another user (uid {status.st_uid}, and this process to uid {user}), and reading "
                f"{file.name} would run the code in it; if you trust it, copy the folder (cp -r): the copy is yours"
            )
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise SecurityError(
                f"every user of this machine may write to {each}, and reading {file.name} would run the code in it; "
                f"if you trust it, run `chmod o-w {each}`"
            )
    notice = f"paceline: runs the code in {code or file}: go on only where you trust it"
    print(visible(notice).replace("\n", "\\n"), file=sys.stderr, flush=True)
