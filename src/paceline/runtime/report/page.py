"""The page of a report, one self-contained HTML file, and the page of runs that still go on.

It is complete without its script: text, tables and charts are in the HTML. A Content-Security-Policy forbids network
access and every script but the page's own, so that not even a name in a job can make the page fetch or run something.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline.runtime.report.formatting import ratio
from paceline.runtime.report.overview import about_run, about_runs, listed, section, speeds, table, team, tiles
from paceline.runtime.report.reading import Lane, Reading, RunStats, lanes_of, open_all, run_stats
from paceline.runtime.report.sections import (
    common_model,
    glossary,
    learning,
    of_run,
    one_by_one,
    staleness_of_all,
    times,
)
from paceline.runtime.report.settings import data, differences, settings
from paceline.runtime.runs.comparison import ComparisonAnswer, ComparisonKind, ComparisonRecord
from paceline.runtime.runs.live import FILE, HANG, LiveRecord, read_hang, read_live
from paceline.runtime.runs.verdict import Interval, is_wide

# The tile at the top of a comparison's page: the plan to use, one process, or that it is not settled.

TITLES = {
    ComparisonKind.RECOMMENDED: "Recommended",
    ComparisonKind.SINGLE: "One process is best here",
    ComparisonKind.UNDECIDED: "Undecided",
}

OPTION = re.compile(r"--[a-z-]+( \d+)?")  # is not broken into two lines


def comparison_of(readings: Sequence[Reading]) -> ComparisonRecord | None:
    """Return the comparison that all runs of a page belong to; None if there is not exactly one."""
    comparison = next((reading.timed.comparison for reading in readings if reading.timed), None)
    failed = {Path(plan.run).name for plan in comparison.failed if plan.run} if comparison else set()
    places = {reading.path.resolve().parent for reading in readings}
    untimed = any(reading.timed is None and reading.path.name not in failed for reading in readings)
    return None if untimed or len(places) > 1 or len(readings) < 2 else comparison


def tile(comparison: ComparisonRecord | None) -> str:
    """What the comparison comes to; empty for a page that is not of one comparison."""
    if comparison is None or comparison.answer is None:
        return ""
    answer = comparison.answer
    warning = f"<p class=warning>{escape(comparison.disagreement)}.</p>" if comparison.disagreement else ""
    failed = [plan.sentence for plan in comparison.failed]
    notes = "".join(f"<p class=warning>{escape(_sentence(note))}</p>" for note in (*failed, *comparison.notes))
    figures = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in _figures(answer))
    command = f"<p>To use it:</p><pre><code>{escape(answer.command)}</code></pre>" if answer.command else ""
    reason = OPTION.sub(r"<span class=option>\g<0></span>", escape(_reason(comparison, answer)))
    return (
        f'<section class="answer {answer.kind.value}" aria-label="The answer"><h2>{TITLES[answer.kind]}</h2>'
        f"<p class=lead>{reason}</p>"
        f"{f'<dl class=tiles>{figures}</dl>' if figures else ''}{command}{warning}{notes}</section>\n"
    )


def _reason(comparison: ComparisonRecord, answer: ComparisonAnswer) -> str:
    """The answer's sentence, without what the tile shows elsewhere."""
    if answer.kind == ComparisonKind.RECOMMENDED:
        row = next((row for row in comparison.plans if row.plan == answer.plan), None)
        return f"{row.short if row else answer.plan}, against one process with {comparison.best_single}"
    return answer.sentence.partition(": ")[2].partition("; to use it:")[0] + "."


def _figures(answer: ComparisonAnswer) -> list[tuple[str, str]]:
    if answer.kind != ComparisonKind.RECOMMENDED or answer.speedup is None or answer.speedup_interval is None:
        return []
    wide = is_wide(answer.speedup, Interval(*answer.speedup_interval))
    figures = [("times as fast as one process", ratio(answer.speedup, answer.speedup_interval, range_only=wide))]
    if answer.accuracy_change is not None and answer.accuracy_change_interval is not None:
        points = 100 * Interval(*answer.accuracy_change_interval).half
        figures.append(("points of accuracy against one process", f"{100 * answer.accuracy_change:+.1f} ±{points:.1f}"))
    return figures


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


SPANS = 1_500_000  # spans of all lanes of a page that are kept for zooming
DETAILED = 24  # runs that are shown one by one, at most
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; script-src "


def page(readings: Sequence[Reading], live: str = "") -> str:
    """The HTML of one run, or of several side by side; with the section that follows them, where they are served."""
    laid = lanes_of(readings)
    all_stats = run_stats(readings, laid)
    spans = SPANS // max(1, sum(map(len, laid)))
    if len(readings) == 1:
        reading, title = readings[0], _title(readings[0], all_stats[0])
        summary = _describe(about_run(reading, all_stats[0])) + tiles(all_stats[0], reading.unsettled)
        body = learning([reading]) + of_run(reading, all_stats[0], laid[0], spans) + data(reading) + settings(reading)
        return document(title, live + section("Summary", summary) + body + glossary(), live=bool(live))
    comparison = comparison_of(readings)
    summary = section("Summary", _describe(about_runs(readings, all_stats)) + speeds(all_stats))
    runs = section("Runs", table(all_stats, bool(comparison and comparison.disagreement)) + differences(readings))
    parts = [runs, learning(readings)]
    body = "".join(parts if len(readings) <= DETAILED else reversed(parts))  # a long table comes last
    body += section("Timeline", times(all_stats) + _details(readings, all_stats, laid, spans))
    body += staleness_of_all(readings) + common_model(readings)
    title = _titles(all_stats, bool(comparison))
    return document(title, live + tile(comparison) + summary + body + glossary(), live=bool(live))


def _details(
    readings: Sequence[Reading], all_stats: Sequence[RunStats], laid: Sequence[Sequence[Lane]], spans: int
) -> str:
    if len(readings) <= DETAILED:
        return "<h3>Each run</h3>" + one_by_one(readings, all_stats, laid, spans)
    return (
        f"<p class=note>Timelines are left out for more than {DETAILED} runs: <code>paceline report RUN</code> shows "
        "them for one run.</p>"
    )


def _describe(lines: Sequence[str]) -> str:
    """The first sentence stands out."""
    return f'<p class="lead">{escape(lines[0])}</p><p class="said">{escape(" ".join(lines[1:]))}</p>'


def _title(reading: Reading, stats: RunStats) -> str:
    return f"{stats.job} by {stats.plan.partition(':')[0]}, {team(stats.workers).lower()}"


def _titles(all_stats: Sequence[RunStats], compared: bool) -> str:
    jobs = sorted({f.job for f in all_stats})
    what = f"{len(all_stats)} plans compared" if compared else f"{len(all_stats)} runs side by side"
    return f"{listed(jobs) if len(jobs) < 4 else f'{len(jobs)} jobs'}: {what}"


def document(title: str, body: str, writer: str = "paceline report", live: bool = False) -> str:
    """The whole page, with the style and the script in it; one that is live may ask the server that it is from."""
    style, *scripts = (
        "\n" + files("paceline.runtime.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js", *["live.js"] * live)
    )
    script = "".join(scripts)
    policy = f"{POLICY}'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    policy += "; connect-src 'self'" * live
    network = "" if live else " This page needs no network."
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{style}</style></head>\n<body><main>\n<header><h1>{escape(title)}</h1></header>\n{body}"
        f"<footer>Written by {writer} on {time.strftime('%Y-%m-%d %H:%M')}.{network}</footer>"
        f"</main><script>{script}</script></body></html>\n"
    )
    return text.encode(errors="backslashreplace").decode()  # names of files may hold halves of characters


# The report of runs that go on: what their workers are at, and what is recorded so far. `interfaces.cli` serves it.
# The page asks for `state` every two seconds, and for the whole report when the folders hold more than it shows.
# Making a report takes seconds for a long run, so one is made at most that often that it takes a fifth of the
# server's time, and only while a browser shows it.

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
