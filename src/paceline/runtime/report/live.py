"""The report of runs that go on: what their workers are at, and what is recorded so far. `interfaces.cli` serves it.

The page asks for `state` every two seconds, and for the whole report when the folders hold more than it shows. Making a
report takes seconds for a long run, so one is made at most that often that it takes a fifth of the server's time, and
only while a browser shows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from paceline.runtime.report.page import page
from paceline.runtime.report.reading import open_all
from paceline.runtime.runs.live import FILE, HANG, LiveRecord, read_hang, read_live

#: Of the server's time that it makes reports in, at most.
SHARE = 0.2


class LivePage:
    """The page of these folders, and their state."""

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._folders, self._clock, self._lock = folders, clock, threading.Lock()
        self._text, self._version, self._next = "", "", 0.0

    def report(self) -> str:
        """The newest report that has been made, with what its workers are at now."""
        with self._lock:
            begun, version = self._clock(), self._recorded()
            if version != self._version and begun >= self._next:
                self._text, self._version = page(open_all(self._folders), PLACE), version
                ended = self._clock()
                self._next = ended + (ended - begun) * (1 - SHARE) / SHARE
            state = _state(self._folders, self._version)
        return self._text.replace(PLACE, _section(state), 1)

    def state(self) -> dict[str, str]:
        """What the page shows at once, and the version of the report that it may ask for."""
        ready = self._clock() >= self._next
        return _state(self._folders, self._recorded() if ready else self._version)

    def _recorded(self) -> str:
        """Changes with whatever a report is made of."""
        names = ("run.json", "trace.arrow", HANG)
        files = sorted(file for folder in self._folders for name in names for file in folder.rglob(name))
        return str(hash(tuple((str(file), _size_and_time(file)) for file in files)))


PLACE = '<section class=live id="live"></section>'


def _section(state: dict[str, str]) -> str:
    return (
        f'<section class=live id="live" data-version="{state["version"]}"><h2>Now</h2>'
        f"<p role=status>{escape(state['status'])}</p><div class=now>{state['now']}</div></section>\n"
    )


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _state(folders: Sequence[Path], version: str) -> dict[str, str]:
    live = {
        file.parent: record for folder in folders for file in folder.rglob(FILE) if (record := read_live(file.parent))
    }
    going = {run: record for run, record in live.items() if record.active}
    status = f"{len(going)} of these runs go on." if len(going) > 1 else "This run goes on." if going else ""
    lost = "".join(_ended_silently(run) for run in live.keys() - going.keys())
    return {
        "version": version,
        "status": status or "No run goes on: this is the whole report.",
        "now": "".join(_now(run, record) for run, record in sorted(going.items())) + lost,
    }


def _now(run: Path, record: LiveRecord) -> str:
    """One run that goes on: how far it is, each worker, and the hang that `paceline watch` has found."""
    at = f"{record.updates:,} of {record.total_updates:,} updates"
    rows = "".join(
        f"<tr><th scope=row>worker {each.number}</th><td>{escape(each.status)}</td>"
        f"<td class=n>{'' if each.update < 0 else f'{each.update:,}'}</td></tr>"
        for each in record.workers
    )
    head = "<thead><tr><th scope=col>worker</th><th scope=col>state</th><th scope=col class=n>at</th></tr></thead>"
    table = f'<div class=scroll tabindex="0"><table>{head}<tbody>{rows}</tbody></table></div>' if rows else ""
    alert = f"<p role=alert>{escape(hang)}</p>" if (hang := read_hang(run)) else ""
    silence = time.time() - record.heartbeat
    late = f", no heartbeat for {silence:.0f} s" if silence > 10 else ""
    return (
        f"<h3>{escape(run.name)}</h3><p>{escape(record.phase)}, {at}{late}</p>"
        f'<progress aria-label="{at}" max="{max(1, record.total_updates)}" value="{record.updates}"></progress>'
        f"{alert}{table}"
    )


def _ended_silently(run: Path) -> str:
    return f"<p class=warning>{escape(run.name)} was killed: its process is gone, and it has no result.</p>"
