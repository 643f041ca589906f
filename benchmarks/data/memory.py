"""Twenty million rows of Parquet prepared with a limit of memory, which is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peers
from cost import measured

ROWS, LIMIT = 20_000_000, 512


def measure(folder: Path, python: str, rows: int = ROWS) -> dict[str, Any]:
    peers.write(folder / "rows.parquet", rows)
    (folder / "recipe.py").write_text(peers.RECIPE)
    command = peers.paceline(python, "out", "--threads", "1", "--memory", "160MB")
    found = measured(command, folder)
    return {"rows": rows, "limit MB": LIMIT, **found, "within": found["largest process MB"] < LIMIT}
