"""What a tuning looks like on a terminal: a live table of the trials, then the best of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.interfaces.cli.terminal import console
from paceline.planning.tuner.result import settings
from paceline.runtime.report.formatting import duration, number

if TYPE_CHECKING:
    from paceline.planning.tuner.result import Tuning
    from paceline.planning.tuner.study import Study

REDRAW = 0.25  # seconds between two pictures on a terminal
PLAIN = 5.0, 60.0  # seconds between two reports in plain lines: at first, and at most after doubling
ROWS = 12  # trials in the table
ORDER = {"running": 0, "paused": 1, "done": 2, "stopped": 3, "failed": 4}


class TuningDisplay:
    """A progress callback that shows the trials under way, and the best so far."""

    def __init__(self, quiet: bool = False, to: Console = console) -> None:
        self.quiet, self.console = quiet, to
        self.live = to.is_terminal and not to.is_dumb_terminal
        self._screen: Live | None = None
        #: Monotonic time of the start, of the last picture or report, and seconds from there to the next report.
        self._begun = self._shown_at = time.monotonic()
        self._pause = PLAIN[0]

    def __call__(self, study: Study) -> None:
        if self.quiet:
            return
        now = time.monotonic()
        if self.live:
            if now - self._shown_at < REDRAW and self._screen is not None:
                return
            if self._screen is None:
                self._screen = Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False)
                self._screen.start()
            self._shown_at = now
            self._screen.update(self.picture(study), refresh=True)
        elif now - self._shown_at >= self._pause:
            self._shown_at, self._pause = now, min(2 * self._pause, PLAIN[1])
            self.console.print(self.head(study), soft_wrap=True)

    def head(self, study: Study) -> str:
        """Describe the tuning in one line, with the time left at this speed."""
        done, spent = study.finished(), time.monotonic() - self._begun
        remaining = duration(spent / done * (study.total - done)) if done else "?"
        best = study.best
        best_text = f", best {number(best.value, 4)} by trial {best.number}" if best is not None else ""
        return f"{done} of {study.total} trials{best_text}, {duration(spent)} so far, {remaining} left"

    def picture(self, study: Study) -> Group:
        table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
        for head in ("trial", "step", "value", "", "configuration"):
            table.add_column(head, justify="left" if head in ("", "configuration") else "right", no_wrap=True)
        shown = sorted(study.trials.values(), key=lambda t: (ORDER[t.status], -t.number))[:ROWS]
        for trial in shown:
            style = "dim" if trial.status not in ("running", "paused") else ""
            table.add_row(
                str(trial.number), str(trial.step), number(trial.value, 4), trial.status, settings(trial), style=style
            )
        return Group(Text(self.head(study), no_wrap=True, overflow="ellipsis"), table)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._screen is not None:
            self._screen.stop()


def show_tuning(tuning: Tuning) -> None:
    """Print what a tuning found, one line per subject."""
    console.print(str(tuning), soft_wrap=True)
