"""What a process that a launcher started says about its failure."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from paceline.algorithms.cluster.launchers import from_environment
from paceline.errors import UsageError


def notify_torchrun(message: str, environ: Mapping[str, str] = os.environ) -> None:
    """Leave a message where torchrun looks for the root cause of a failure, as `torch.distributed.elastic` has it."""
    if file := environ.get("TORCHELASTIC_ERROR_FILE"):
        report = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps(report), encoding="utf-8")


def rank_before(environ: Mapping[str, str]) -> str:
    """Return what precedes a message of a rank other than 0, which may say the same as all others do."""
    with contextlib.suppress(UsageError):  # a variable of the launcher that is wrong: it is the message
        launched = from_environment(environ)
        if launched is not None and launched.nodes > 1 and launched.rank:
            return f"rank {launched.rank}: "
    return ""
