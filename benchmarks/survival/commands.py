"""Commands of Paceline's in processes that are forked, which find what they do by its name."""

from __future__ import annotations

import sys

from paceline.interfaces import cli


def command(*words: str) -> int:
    """Be `paceline WORDS...`; return its exit code."""
    sys.argv[:] = ["paceline", *words]
    try:
        cli.main()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
