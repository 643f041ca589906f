"""The console for people: standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from paceline.names import visible


class PlainConsole(Console):
    """A console that shows text as it is: brackets are no markup, and control characters do nothing to a terminal.

    Names, messages and lines of source come from files, which may be another person's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console = PlainConsole(stderr=True)


def saying(quiet: bool) -> Callable[[str], None]:
    """Return what prints a line about progress; nothing, if `quiet`."""
    return lambda line: None if quiet else console.print(line, style="dim", soft_wrap=True)
