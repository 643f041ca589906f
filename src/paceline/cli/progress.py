"""The display of a training: a line per worker, redrawn on a terminal; elsewhere plain lines from time to time."""

from __future__ import annotations

import math
import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.cli.console import console
from paceline.runs.live_status import LiveStatus, WorkerLine
from paceline.runs.progress import Progress

REDRAW = 0.25  # seconds between two pictures on a terminal
PLAIN = 5.0, 60.0  # seconds between two reports in plain lines: at first, and at most after doubling


class ProgressDisplay:
    """A progress callback that shows the run; quiet, it shows only that the run is stopping."""

    def __init__(self, name: str, quiet: bool = False, to: Console = console) -> None:
        self.name, self.quiet, self.console = name, quiet, to
        self.live = to.is_terminal and not to.is_dumb_terminal
        self.status = LiveStatus()
        self._screen: Live | None = None
        self._stopping = self._resumed = False  # whether it was said
        #: Monotonic time of the last picture or report, and seconds from there to the next report.
        self._shown_at, self._pause = time.monotonic(), PLAIN[0]

    def __call__(self, report: Progress) -> None:
        if report.stopping and not self._stopping:
            self._stopping = True
            self.console.print("stopping after a checkpoint; Ctrl-C again stops at once", style="yellow")
        if self.quiet:
            return
        if report.resumed_updates and not self._resumed:
            self._resumed = True
            line = f"resuming after update {report.resumed_updates:,} of {report.total_updates:,}"
            self.console.print(line, highlight=False)
        self.status.update(report)
        now = time.monotonic()
        if self.live:
            self._redraw(now)
        elif now - self._shown_at >= self._pause:
            self._shown_at, self._pause = now, min(2 * self._pause, PLAIN[1])
            for line in self.lines():
                self.console.print(line, markup=False, soft_wrap=True)

    def _redraw(self, now: float) -> None:
        if self._screen is None:
            self._screen = Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._screen.start()
        elif now - self._shown_at < REDRAW:
            return
        self._shown_at = now
        self._screen.update(self.picture(), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._screen is not None:
            self._screen.stop()

    def picture(self) -> Group:
        """Draw the status for a terminal: a line for the run and a table of its workers."""
        table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
        table.add_column("worker", justify="right", no_wrap=True)
        for head, width in (("samples/s", 9), ("loss", 7), ("stale", 5), ("waits", 5), ("left", 7)):
            table.add_column(head, justify="right", no_wrap=True, min_width=width)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        shown = self._shown()
        for worker in shown:
            remark = Text(worker.remark, "yellow" if worker.remark.startswith("straggler") else "dim")
            table.add_row(str(worker.number), *_figures(worker), remark, style="dim" if worker.state else "")
        left_out = len(self.status.workers) - len(shown)
        more = [Text(f"and {left_out} more workers", "dim")] if left_out else []
        return Group(Text(self.head(), no_wrap=True, overflow="ellipsis"), table, *more)

    def _shown(self) -> list[WorkerLine]:
        """Choose as many workers as fit on the screen, stragglers and those that are gone first, and sort them."""
        fits = max(1, self.console.height - 4)
        if len(self.status.workers) <= fits:
            return self.status.workers
        some = sorted(self.status.workers, key=lambda w: (not w.remark.startswith("straggler"), not w.state, w.number))
        return sorted(some[:fits], key=lambda w: w.number)

    def head(self) -> str:
        """Describe the whole run in one line."""
        status = self.status
        loss = [worker.loss for worker in status.workers if math.isfinite(worker.loss)]
        said = f"loss {sum(loss) / len(loss):.4f}, " if loss else ""
        return (
            f"{self.name}  {status.share:.0%} of {status.total_updates:,} updates, {status.rate:,.0f} samples/s, {said}"
            f"{_clock(status.left)} left"
        )

    def lines(self) -> list[str]:
        """Describe the run for a file: all workers of a small team, and otherwise those with a remark."""
        workers = self.status.workers if len(self.status.workers) <= 8 else [w for w in self.status.workers if w.remark]
        lines = [self.head()]
        for worker in workers[:8]:
            rate, loss, stale, waits, left = _figures(worker)
            remark = f"  {worker.remark}" if worker.remark else ""
            lines.append(
                f"  worker {worker.number}  {rate} samples/s  loss {loss}  stale {stale}  waits {waits}  {left}{remark}"
            )
        return lines


def _figures(worker: WorkerLine) -> list[str]:
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
