"""The page of a tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.tuner.account import Account
from paceline.tuner.study import Study


def write_page(file: Path, study: Study, header: dict[str, Any], account: Account) -> None:
    pass
