"""What every benchmark writes: its figures with machine, versions and command."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from paceline.runtime.runs.machine import this_machine
from paceline.runtime.runs.schema import to_dict


def write(folder: Path, figures: dict[str, Any], name: str = "result.json", say: bool = True) -> None:
    record = {
        "command": "python " + " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "machine": to_dict(this_machine()),
        **figures,
    }
    (folder / name).write_text(json.dumps(record, indent=1) + "\n")
    if say:
        print(f"written to {folder / name}")
