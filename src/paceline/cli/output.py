"""Standard output is reserved for one JSON object; anything else that is printed, here or in a worker, goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from paceline.runs.json_files import strict

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
