"""JSON files as every reader takes them: replaced atomically, and without NaN."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from paceline.errors import RunFolderError


def strict(value: Any) -> Any:
    """Replace NaN and the infinities, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(file: Path, value: Any) -> None:
    """Replace the file atomically: a concurrent reader finds either the old content or the new one, whole."""
    draft = file.with_name(file.name + ".new")
    draft.write_text(json.dumps(strict(value), indent=1, default=str, allow_nan=False) + "\n")
    os.replace(draft, file)


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object; RunFolderError if the file holds anything else."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: {error}; give another folder") from None
    if not isinstance(found, dict):
        raise RunFolderError(f"{file} is damaged: it holds a {type(found).__name__}, no object; give another folder")
    return found
