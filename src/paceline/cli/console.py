"""The console for people: standard error."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

console = Console(stderr=True, highlight=False)


def saying(quiet: bool) -> Callable[[str], None]:
    """Return what prints a line about progress; nothing, if `quiet`."""
    return lambda line: None if quiet else console.print(line, style="dim", markup=False, soft_wrap=True)
