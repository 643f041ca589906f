"""Standard output, kept clean for one JSON object; whatever else is printed, here or in a worker, goes to standard
error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from paceline.runs.json_files import strict

_kept: int | None = None


def keep_for_json() -> None:
    """From now on only `print_json` writes to standard output; processes started later inherit this."""
    global _kept
    sys.stdout.flush()
    _kept = os.dup(1)
    os.set_inheritable(_kept, False)
    os.dup2(2, 1)


def print_json(value: Any) -> None:
    line = json.dumps(strict(value), default=str, allow_nan=False) + "\n"
    if _kept is None:
        sys.stdout.write(line)
    else:
        os.write(_kept, line.encode())
