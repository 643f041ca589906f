"""The page: one self-contained HTML file with its style, script and data.

It is complete without its script: text, tables and charts are in the HTML. A Content-Security-Policy forbids network
access, so that not even a name in a job can make the page fetch something.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from paceline.report.overview import speeds, table, tiles
from paceline.report.reading import Reading
from paceline.report.run_stats import RunStats, lanes_of, run_stats
from paceline.report.sections import glossary, learning, of_run, one_by_one, settings, staleness_of_all, times
from paceline.report.sentences import about_run, about_runs, listed, team

SPANS = 1_500_000  # spans of all lanes of a page that are kept for zooming
DETAILED = 24  # runs that are shown one by one, at most
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(readings: Sequence[Reading]) -> str:
    """The HTML of one run, or of several side by side."""
    laid = lanes_of(readings)
    found = run_stats(readings, laid)
    spans = SPANS // max(1, sum(map(len, laid)))
    if len(readings) == 1:
        reading, title = readings[0], _title(readings[0], found[0])
        summary = about_run(reading, found[0])
        body = tiles(found[0]) + learning([reading])
        body += of_run(reading, found[0], laid[0], spans) + settings(reading)
    else:
        title, summary = _titles(found), about_runs(readings, found)
        parts = [table(found) + speeds(found), learning(readings)]
        body = "".join(parts if len(readings) <= DETAILED else reversed(parts))  # a long table comes last
        body += times(found) + staleness_of_all(readings)
        if len(readings) <= DETAILED:
            body += one_by_one(readings, found, laid, spans)
        else:
            body += (
                f"<p class=note>Timelines and settings are left out for more than {DETAILED} runs: "
                "<code>paceline report RUN</code> shows them for one run.</p>"
            )
    return _document(title, summary, body + glossary())


def _title(reading: Reading, found: RunStats) -> str:
    return f"{found.job} by {found.plan.partition(':')[0]}, {team(found.workers).lower()}"


def _titles(found: Sequence[RunStats]) -> str:
    jobs = sorted({f.job for f in found})
    return f"{listed(jobs) if len(jobs) < 4 else f'{len(jobs)} jobs'}: {len(found)} runs side by side"


def _document(title: str, summary: Sequence[str], body: str) -> str:
    assets = files("paceline.report")
    style, script = (assets.joinpath(name).read_text() for name in ("page.css", "page.js"))
    first, rest = summary[0], " ".join(summary[1:])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>\n{style}</style></head>\n<body><main>\n<header><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(first)}</p><p class="said">{escape(rest)}</p></header>\n{body}'
        f"<footer>Written by paceline report on {time.strftime('%Y-%m-%d %H:%M')}. This page needs no network.</footer>"
        f"</main><script>\n{script}</script></body></html>\n"
    )
