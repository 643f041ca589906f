"""The console for people: standard error."""

from __future__ import annotations

from rich.console import Console

console = Console(stderr=True, highlight=False)
