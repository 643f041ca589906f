"""The page: one self-contained HTML file with its style, script and data.

It is complete without its script: text, tables and charts are in the HTML. A Content-Security-Policy forbids network
access and every script but the page's own, so that not even a name in a job can make the page fetch or run something.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from paceline.runtime.report.answer import comparison_of, tile
from paceline.runtime.report.data import data
from paceline.runtime.report.lanes import Lane
from paceline.runtime.report.overview import section, speeds, table, tiles
from paceline.runtime.report.reading import Reading
from paceline.runtime.report.run_stats import RunStats, lanes_of, run_stats
from paceline.runtime.report.sections import (
    common_model,
    glossary,
    learning,
    of_run,
    one_by_one,
    staleness_of_all,
    times,
)
from paceline.runtime.report.sentences import about_run, about_runs, listed, team
from paceline.runtime.report.settings import differences, settings

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
