"""The table of a collective as text: a row per step, a column per worker."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.algorithms.collectives import Collective, Part, Step
from paceline.errors import PlanError

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # a segment each

LEGEND = (
    (">", "a>1", "sends segment a to worker 1"),
    ("+", "+a<1", "takes segment a from worker 1 and adds it to its own"),
    (" <", "a<1", "takes segment a from worker 1 in place of its own"),
    ("A", "A", "a capital: the sum of all workers"),
    (".", ".", "sits this step out"),
)


def draw_collective(collective: Collective, workers: int) -> list[str]:
    """Draw the table of a collective: what each worker sends and receives in each step."""
    if workers == 1:
        return ["One worker has no other to exchange with."]
    segments = collective.segments(workers)
    if segments > len(LETTERS):
        raise PlanError(f"{segments} segments do not fit on a page; draw fewer workers: --workers 8")
    tables = [list(collective.steps(worker, workers)) for worker in range(workers)]
    contributors = [[{worker} for _ in range(segments)] for worker in range(workers)]  # contributors to each segment
    rows = [_cells(row, contributors) for row in zip(*tables, strict=True)]
    most = max(sum(s.send.stop - s.send.first for s in table if s.send is not None) for table in tables) / segments
    return [
        *_grid([f"worker {worker}" for worker in range(workers)], rows),
        "",
        *_legend(" ".join(f" {cell}" for row in rows for cell in row)),
        "",
        f"{len(rows)} steps; the worker that sends most sends {most:.3g} times the vector.",
    ]


def _cells(row: Sequence[Step], contributors: list[list[set[int]]]) -> list[str]:
    """Return the cells of a step, and apply the step to the segments that workers hold."""
    before, workers = [list(mine) for mine in contributors], len(row)
    cells = []
    for worker, (send, receive, reduce, _) in enumerate(row):
        words = [] if send is None else [f"{_name(send, before[worker], workers)}>{send.other}"]
        if receive is not None:
            for segment in range(receive.first, receive.stop):
                theirs = before[receive.other][segment]
                contributors[worker][segment] = before[worker][segment] | theirs if reduce else theirs
            words.append(f"{'+' * reduce}{_name(receive, contributors[worker], workers)}<{receive.other}")
        cells.append(" ".join(words) or ".")
    return cells


def _name(part: Part, contributors: Sequence[set[int]], workers: int) -> str:
    """Return the letters of a part; capitals are complete sums."""
    letters = [
        LETTERS[segment].upper() if len(contributors[segment]) == workers else LETTERS[segment]
        for segment in range(part.first, part.stop)
    ]
    return "".join(letters) if len(letters) <= 4 else f"{letters[0]}..{letters[-1]}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [("step", heads), *((str(number), row) for number, row in enumerate(rows))]
    return [
        f"{first:>4}   {'   '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))}".rstrip()
        for first, cells in lines
    ]


def _legend(text: str) -> list[str]:
    """Explain the signs that occur."""
    occurs = {
        ">": ">" in text,
        "+": "+" in text,
        " <": any("<" in word and "+" not in word for word in text.split()),
        "A": text != text.lower(),
        ".": " . " in f"{text} ",
    }
    return [f"  {sign:<5}  {meaning}" for key, sign, meaning in LEGEND if occurs[key]]
