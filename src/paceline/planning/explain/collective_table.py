"""The table of a collective as text: a row per step, a column per worker."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.algorithms.collectives import Collective, Part, Step
from paceline.algorithms.collectives.canonical import Canonical
from paceline.errors import PlanError

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # a segment each

LEGEND = (
    (">", "a>1", "sends segment a to worker 1"),
    ("+", "+a<1", "takes segment a from worker 1 and adds it to its own"),
    (" <", "a<1", "takes segment a from worker 1 in place of its own"),
    ("-", "a2-3", "segment a of the sum of chunks 2 and 3; one that is taken without + lies beside the others"),
    ("=", "=a0-3", "adds two sums of segment a that it has"),
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
    drawn = _Drawn(collective, workers)
    rows = [drawn.cells(row) for row in zip(*tables, strict=True)]
    most = max(sum(s.send.stop - s.send.first for s in table if s.send is not None) for table in tables) / segments
    return [
        *_grid([f"worker {worker}" for worker in range(workers)], rows),
        "",
        *_legend(" ".join(f" {cell}" for row in rows for cell in row)),
        "",
        f"{len(rows)} steps; the worker that sends most sends {most:.3g} times the vector.",
    ]


class _Drawn:
    """What each segment of each worker is made of, as the table goes on: workers, or chunks of a canonical sum."""

    def __init__(self, collective: Collective, workers: int) -> None:
        self.segments = collective.segments(workers)
        self.whole, self.ranges = set(range(workers)), isinstance(collective, Canonical)
        self.held: list[list[set[int]]] = [[{worker} for _ in range(self.segments)] for worker in range(workers)]
        if isinstance(collective, Canonical):
            self.whole, lanes = set(range(collective.chunks)), collective.lanes(workers)
            for worker in range(workers):
                trees = [set(range(*tree)) for tree in collective.partial_sums(worker, workers)]
                trees += [set() for _ in range(lanes - len(trees))]
                self.held[worker] = [tree for tree in trees for _ in range(self.segments)]

    def cells(self, row: Sequence[Step]) -> list[str]:
        """Return the cells of a step, and apply the step to what workers hold."""
        before = [list(mine) for mine in self.held]
        cells = []
        for worker, step in enumerate(row):
            words = [] if step.send is None else [f"{self._name(step.send, before[worker])}>{step.send.other}"]
            if step.receive is not None:
                other, first, stop = step.receive
                for number, theirs in enumerate(before[other][first:stop], start=step.written.first):
                    self.held[worker][number] = before[worker][number] | theirs if step.reduce else theirs
                name = self._name(step.written, self.held[worker])
                words.append(f"={name}" if other == worker else f"{'+' * step.reduce}{name}<{other}")
            cells.append(" ".join(words) or ".")
        return cells

    def _name(self, part: Part, held: Sequence[set[int]]) -> str:
        """Return the letters of a part; capitals are complete sums."""
        letters = [
            LETTERS[number % self.segments].upper() if held[number] == self.whole else LETTERS[number % self.segments]
            for number in range(part.first, part.stop)
        ]
        name, made = "".join(letters) if len(letters) <= 4 else f"{letters[0]}..{letters[-1]}", held[part.first]
        if not self.ranges or made == self.whole:
            return name
        return f"{name}{min(made)}-{max(made)}" if len(made) > 1 else f"{name}{min(made)}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [("step", heads), *((str(number), row) for number, row in enumerate(rows))]
    return [
        f"{first:>4}   {'   '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))}".rstrip()
        for first, cells in lines
    ]


def _legend(text: str) -> list[str]:
    """Explain the signs that occur."""
    words = text.split()
    occurs = {
        ">": ">" in text,
        "+": "+" in text,
        " <": any(
            "<" in word and "+" not in word and not any(map(str.isdigit, word.partition("<")[0])) for word in words
        ),
        "-": any(any(map(str.isdigit, word.partition("<")[0].partition(">")[0])) for word in words),
        "=": "=" in text,
        "A": text != text.lower(),
        ".": " . " in f"{text} ",
    }
    return [f"  {sign:<5}  {meaning}" for key, sign, meaning in LEGEND if occurs[key]]
