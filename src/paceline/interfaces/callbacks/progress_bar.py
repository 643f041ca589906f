"""ProgressBar: the display of a training. A terminal or a notebook shows a bar and a line per worker, redrawn in place;
a file gets plain lines from time to time.
"""

from __future__ import annotations

import io
import math
import time
from typing import Any, final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from paceline.interfaces.callbacks import Training
from paceline.runtime.runs.progress import LiveStatus, Progress, WorkerLine
from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.run import Run

REDRAW = 0.25  # seconds between two pictures on a terminal
PLAIN = 5.0, 60.0  # seconds between two reports in plain lines: at first, and at most after doubling
WIDTH = 100  # columns in a notebook


@final
class ProgressBar:
    """Shows epoch, loss, figures of the test data, samples per second and the time left while a run trains.

    Args:
        title: What the run is called. Default: its job and plan.
        quiet: Show only that the run is stopping.
        console: Where it is shown. Default: standard error.
    """

    #: The share of the run's time that evaluations take for this callback, at most.
    evaluation_share = 0.01

    def __init__(self, title: str = "", quiet: bool = False, console: Console | None = None) -> None:
        self.title, self.quiet = title, quiet
        self.console = console or Console(stderr=True, highlight=False)
        self.status = LiveStatus()
        self._screen: Live | _Notebook | None = None
        self._stopping = self._resumed = False  # whether it was said
        self._training: Training | None = None
        self._evaluated = ""
        #: Monotonic time of the last picture or report, and seconds from there to the next report.
        self._shown_at, self._pause = time.monotonic(), PLAIN[0]

    def on_train_start(self, training: Training) -> None:
        """Note which run it is."""
        self._training = training
        self.title = self.title or f"{training.job} by {training.plan}"

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """Note the figures of the newest evaluation."""
        names = sorted(evaluation.metrics, key=lambda name: (name == "test_loss", name != "test_accuracy"))
        shown = [f"{name.replace('_', ' ')} {_figure(name, evaluation.metrics[name])}" for name in names[:2]]
        self._evaluated = ", ".join(shown)

    def on_exception(self, training: Training, error: BaseException) -> None:
        """Leave the terminal as it was."""
        self.close()

    def on_train_end(self, training: Training, run: Run) -> None:
        """Leave the terminal as it was."""
        self.close()

    def on_update_end(self, training: Training | None, report: Progress) -> None:
        """Show the run as it is now."""
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
        if self.console.is_jupyter or (self.console.is_terminal and not self.console.is_dumb_terminal):
            self._redraw(now)
        elif now - self._shown_at >= self._pause:
            self._shown_at, self._pause = now, min(2 * self._pause, PLAIN[1])
            for line in self.lines():
                self.console.print(line, markup=False, soft_wrap=True)

    def _redraw(self, now: float) -> None:
        if self._screen is None:
            if self.console.is_jupyter:
                self._screen = _Notebook()
            else:
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
        """Draw the status for a terminal: a line and a bar for the run, and a table of its workers."""
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
        bar = Table.grid()  # ends the line
        bar.add_row(Bar(max(1, self.status.total_updates), self.status.updates, width=min(self.console.width, 80)))
        return Group(Text(self.head(), no_wrap=True, overflow="ellipsis"), bar, table, *more)

    def _shown(self) -> list[WorkerLine]:
        """Choose as many workers as fit on the screen, stragglers and those that are gone first, and sort them."""
        fits = max(1, self.console.height - 5)
        if len(self.status.workers) <= fits:
            return self.status.workers
        some = sorted(self.status.workers, key=lambda w: (not w.remark.startswith("straggler"), not w.state, w.number))
        return sorted(some[:fits], key=lambda w: w.number)

    def head(self) -> str:
        """Describe the whole run in one line."""
        status, training = self.status, self._training
        every = training.updates_per_epoch if training else 0
        epochs = -(-status.total_updates // every) if every else 0
        parts = [
            f"epoch {min(status.updates // every + 1, epochs)}/{epochs}" if every else "",
            f"{status.share:.0%} of {status.total_updates:,} updates",
            f"loss {status.loss:.4f}" if math.isfinite(status.loss) else "",
            self._evaluated,
            f"{status.rate:,.0f} samples/s",
            f"{_clock(status.left)} left",
        ]
        return f"{self.title}  {', '.join(filter(None, parts))}"

    def lines(self) -> list[str]:
        """Describe the run for a file: all workers of a small team, and otherwise those with a remark."""
        workers = self.status.workers if len(self.status.workers) <= 8 else [w for w in self.status.workers if w.remark]
        lines = [self.head()]
        for worker in workers[:8]:
            rate, loss, stale, waits, eta = _figures(worker)
            remark = f"  {worker.remark}" if worker.remark else ""
            lines.append(
                f"  worker {worker.number}  {rate} samples/s  loss {loss}  stale {stale}  waits {waits}  {eta}{remark}"
            )
        return lines


def _figures(worker: WorkerLine) -> list[str]:
    eta = worker.state or _clock(worker.left)
    loss, stale = (_number(value, form) for value, form in ((worker.loss, ".4f"), (worker.staleness, ".1f")))
    return [f"{worker.rate:,.0f}", loss, stale, _number(worker.waiting, ".0%"), eta]


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if "accuracy" in name else f"{value:.4g}"


class _Notebook:
    """A picture in a notebook's cell, which is replaced by the next one."""

    def __init__(self) -> None:
        self._handle: Any = None

    def start(self) -> None:
        """Do nothing: the first picture makes the place for the next ones."""

    def update(self, picture: Group, refresh: bool) -> None:
        """Show a picture in place of the last one."""
        from IPython.display import HTML, display

        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
        console.print(picture)
        html: Any = HTML
        shown = html(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))
        if self._handle is None:
            show: Any = display
            self._handle = show(shown, display_id=True)
        else:
            self._handle.update(shown)

    def stop(self) -> None:
        """Leave the last picture."""
