"""Rows of a long measurement, kept in a file as they come, so that a run that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def rows_of(part: str, keys: Iterable[Any], measure: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every key: those of the file of this part, and the others as they are measured."""
    file = HERE / f"rows_{part}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {json.dumps(row["key"]) for row in rows}
    with file.open("a") as kept:
        for key in keys:
            if json.dumps(key) not in known:
                rows.append({"key": key, **measure(key)})
                kept.write(json.dumps(rows[-1]) + "\n")
                kept.flush()
    return rows
