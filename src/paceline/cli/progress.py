"""Progress while workers train: a table that is redrawn on a terminal, and an occasional plain line elsewhere."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.cli.console import console
from paceline.runs.live_status import Board, Worker

REDRAW = 0.25  # seconds between two pictures on a terminal
PLAIN = 5.0, 60.0  # seconds between plain lines: at first, and at most, since the pause doubles after each


class Progress:
    """A callback for the engine that shows the state of the workers; it prints nothing when quiet."""

    def __init__(self, name: str, quiet: bool = False, to: Console = console) -> None:
        self.name, self.quiet, self.console = name, quiet, to
        self.live = to.is_terminal and not to.is_dumb_terminal
        self.board = Board()
        self._screen: Live | None = None
        self._ending = self._resumed = False  # whether these were already reported
        self._shown_at, self._pause = time.monotonic(), PLAIN[0]

    def __call__(self, state: dict[str, Any]) -> None:
        if state.get("ending") and not self._ending:
            self._ending = True
            self.console.print("stopping after a checkpoint; press Ctrl-C again to stop at once", style="yellow")
        if self.quiet:
            return
        if state.get("resumed_from") and not self._resumed:
            self._resumed = True
            self.console.print(f"resuming from update {state['resumed_from']:,} of {state['of']:,}", highlight=False)
        self.board.hear(state)
        now = time.monotonic()
        if self.live:
            if self._screen is None:
                self._screen = Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False)
                self._screen.start()
            elif now - self._shown_at < REDRAW:
                return
            self._shown_at = now
            self._screen.update(self.picture(), refresh=True)
        elif now - self._shown_at >= self._pause:
            self._shown_at, self._pause = now, min(2 * self._pause, PLAIN[1])
            for line in self.lines():
                self.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the table from the terminal."""
        if self._screen is not None:
            self._screen.stop()

    def picture(self) -> Group:
        """The table for a terminal."""
        table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
        table.add_column("worker", justify="right", no_wrap=True)
        for head, width in (("samples/s", 9), ("loss", 7), ("stale", 5), ("waits", 5), ("left", 7)):
            table.add_column(head, justify="right", no_wrap=True, min_width=width)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        shown = self._shown()
        for worker in shown:
            remark = Text(worker.remark, "yellow" if worker.remark.startswith("straggler") else "dim")
            table.add_row(str(worker.number), *_figures(worker), remark, style="dim" if worker.state else "")
        left_out = len(self.board.workers) - len(shown)
        more = [Text(f"and {left_out} more workers", "dim")] if left_out else []
        return Group(Text(self.head(), no_wrap=True, overflow="ellipsis"), table, *more)

    def _shown(self) -> list[Worker]:
        """The workers that fit on the screen: stragglers and workers with a state are shown first of all."""
        fits = max(1, self.console.height - 4)
        if len(self.board.workers) <= fits:
            return self.board.workers
        some = sorted(self.board.workers, key=lambda w: (not w.remark.startswith("straggler"), not w.state, w.number))
        return sorted(some[:fits], key=lambda w: w.number)

    def head(self) -> str:
        """The run as a whole in one line."""
        board = self.board
        loss = [worker.loss for worker in board.workers if math.isfinite(worker.loss)]
        mean = f"loss {sum(loss) / len(loss):.4f}, " if loss else ""
        return (
            f"{self.name}  {board.share:.0%} of {board.of:,} updates, {board.rate:,.0f} samples/s, {mean}"
            f"{_clock(board.left)} left"
        )

    def lines(self) -> list[str]:
        """Plain lines for a file: the run as a whole, then up to eight workers; of many, only those with a remark."""
        workers = self.board.workers if len(self.board.workers) <= 8 else [w for w in self.board.workers if w.remark]
        lines = [self.head()]
        for worker in workers[:8]:
            rate, loss, stale, waits, left = _figures(worker)
            remark = f"  {worker.remark}" if worker.remark else ""
            lines.append(
                f"  worker {worker.number}  {rate} samples/s  loss {loss}  stale {stale}  waits {waits}  {left}{remark}"
            )
        return lines


def _figures(worker: Worker) -> list[str]:
    left = worker.state or _clock(worker.left)
    loss, stale = (_number(value, form) for value, form in ((worker.loss, ".4f"), (worker.staleness, ".1f")))
    return [f"{worker.rate:,.0f}", loss, stale, _number(worker.waiting, ".0%"), left]


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
