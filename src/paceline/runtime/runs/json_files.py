"""JSON files as every reader takes them: replaced atomically, and without NaN."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    with draft_of(file) as draft:
        draft.write_text(json_text(value))


def json_text(value: Any) -> str:
    """Return what a file holds."""
    return json.dumps(strict(value), indent=1, default=str, allow_nan=False) + "\n"


@contextmanager
def draft_of(file: Path, name: str = "new") -> Iterator[Path]:
    """Yield a path that replaces the file at the end of the block; nothing is left of it if the block fails."""
    draft = file.with_name(f"{file.name}.{name}")
    try:
        yield draft
        os.replace(draft, file)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object; RunFolderError if the file holds anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: {error}; give another folder") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"{file} is damaged: it holds a {type(content).__name__}, no object; give another folder")
    return content
