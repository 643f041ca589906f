"""Tables and lists of text, for terminals and for notebooks. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from paceline.names import visible

SUBJECT = 11  # characters that a subject has at least, so that lists of one line or two are aligned with others


@dataclass(frozen=True)
class TextTable:
    """A table of text. The first column stands at the left, figures at the right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(zipped))
            for zipped in (tuple(zip(row, widths, strict=True)) for row in (self.heads, *self.rows))
        ]
        return visible("\n".join([self.title, *lines]))

    def html(self, notes: Sequence[str] = ()) -> str:
        """Return the table as HTML, with notes below it."""
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in self.heads)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        return _html(self.title, f"<tr>{heads}</tr>{rows}", notes)


@dataclass(frozen=True)
class TextList:
    """What there is to say about one thing: a line for each subject."""

    title: str
    lines: Mapping[str, str]

    def __str__(self) -> str:
        width = max(SUBJECT, *map(len, self.lines))
        return visible("\n".join(f"{subject:>{width}}  {line}" for subject, line in self.lines.items()))

    def html(self, notes: Sequence[str] = ()) -> str:
        """Return the list as HTML, with notes below it."""
        rows = (
            f'<tr><th scope="row">{escape(subject)}</th><td>{escape(line)}</td></tr>'
            for subject, line in self.lines.items()
        )
        return _html(self.title, "".join(rows), notes)


class Listed(ABC):
    """What is shown as a list, in a terminal and in a notebook."""

    @abstractmethod
    def _listed(self) -> TextList:
        """Return the list."""

    def __str__(self) -> str:
        return str(self._listed())

    def _repr_html_(self) -> str:
        return self._listed().html()


class Tabled(ABC):
    """What is shown as a table with notes below it, in a terminal and in a notebook."""

    @abstractmethod
    def table(self) -> TextTable:
        """Return the table."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return what stands below the table."""

    def __str__(self) -> str:
        return "\n".join([str(self.table()), *self.notes()])

    def _repr_html_(self) -> str:
        return self.table().html(self.notes())


def _html(title: str, rows: str, notes: Sequence[str]) -> str:
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table><caption>{escape(title)}</caption>{rows}</table>{below}"
