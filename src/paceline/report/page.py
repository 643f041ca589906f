"""The page: one HTML file with its style, its script and its data in it, and nothing that leads out of it.

It is whole without its script: words, tables and pictures are in the text. A Content-Security-Policy forbids it any
network, so that a name in a job cannot make it fetch something either.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from paceline.report.figures import Figures, figures, lanes_of
from paceline.report.overview import speeds, table, tiles
from paceline.report.reading import Reading
from paceline.report.sections import learning, of_run, one_by_one, settings, staleness_of_all, times, words
from paceline.report.words import about_run, about_runs, listed, team

SPANS = 1_500_000  # of all lanes of a page, to look closely at
DETAILED = 24  # runs that are shown one by one below the table
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(readings: Sequence[Reading]) -> str:
    """HTML of one run, or of several side by side."""
    laid = lanes_of(readings)
    found = figures(readings, laid)
    spans = SPANS // max(1, sum(map(len, laid)))
    if len(readings) == 1:
        reading, title = readings[0], _title(readings[0], found[0])
        said = about_run(reading, found[0])
        body = tiles(found[0]) + learning([reading])
        body += of_run(reading, found[0], laid[0], spans) + settings(reading)
    else:
        title, said = _titles(found), about_runs(readings, found)
        parts = [table(found) + speeds(found), learning(readings)]
        body = "".join(parts if len(readings) <= DETAILED else reversed(parts))  # a long table comes last
        body += times(found) + staleness_of_all(readings)
        if len(readings) <= DETAILED:
            body += one_by_one(readings, found, laid, spans)
        else:
            body += (
                f"<p class=note>Of more than {DETAILED} runs, timelines and settings are left out: "
                "<code>paceline report RUN</code> shows one run with all of it.</p>"
            )
    return _document(title, said, body + words())


def _title(reading: Reading, found: Figures) -> str:
    return f"{found.job} by {found.plan.partition(':')[0]}, {team(found.workers).lower()}"


def _titles(found: Sequence[Figures]) -> str:
    jobs = sorted({f.job for f in found})
    return f"{listed(jobs) if len(jobs) < 4 else f'{len(jobs)} jobs'}: {len(found)} runs side by side"


def _document(title: str, said: Sequence[str], body: str) -> str:
    assets = files("paceline.report")
    style, script = (assets.joinpath(name).read_text() for name in ("page.css", "page.js"))
    first, rest = said[0], " ".join(said[1:])
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
