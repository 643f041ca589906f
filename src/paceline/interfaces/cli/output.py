"""What commands hand over: one JSON object on standard output, or a text there or in a file.

Standard output is reserved for the JSON object; anything else that is printed, here or in a worker, goes to standard
error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.runtime.runs.schema import strict

#: A duplicate of the original standard output, once it is reserved.
_json_output: int | None = None


def reserve_stdout() -> None:
    """Send all output but that of `print_json` to standard error, in processes that are started later too."""
    global _json_output
    sys.stdout.flush()
    _json_output = os.dup(1)
    os.set_inheritable(_json_output, False)
    os.dup2(2, 1)


def print_json(value: Any) -> None:
    """Write one line of strict JSON; NaN and infinities become null."""
    line = json.dumps(strict(value), default=str, allow_nan=False) + "\n"
    if _json_output is None:
        sys.stdout.write(line)
    else:
        os.write(_json_output, line.encode())


def write_text(text: str, file: Path | None, replace: bool) -> None:
    """Write a text to standard output or to a file; a file that exists is only replaced on request."""
    if file is None:
        sys.stdout.write(text)
        return
    try:
        with file.open("w" if replace else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UsageError(f"--output {file}: the file exists; give --force to replace it, or another name") from None
    except OSError as error:
        raise UsageError(f"--output {file}: {error.strerror}; give another file") from error
