"""The tile at the top of a comparison's page: the plan to use, one process, or that it is not settled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from paceline.runtime.report.formatting import ratio
from paceline.runtime.report.reading import Reading
from paceline.runtime.runs.comparison import Answer, ComparisonRecord, Kind
from paceline.runtime.runs.intervals import Interval
from paceline.runtime.runs.verdict import is_wide

TITLES = {Kind.RECOMMENDED: "Recommended", Kind.SINGLE: "One process is best here", Kind.UNDECIDED: "Undecided"}

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


def _reason(comparison: ComparisonRecord, answer: Answer) -> str:
    """The answer's sentence, without what the tile shows elsewhere."""
    if answer.kind == Kind.RECOMMENDED:
        row = next((row for row in comparison.plans if row.plan == answer.plan), None)
        return f"{row.short if row else answer.plan}, against one process with {comparison.best_single}"
    return answer.sentence.partition(": ")[2].partition("; to use it:")[0] + "."


def _figures(answer: Answer) -> list[tuple[str, str]]:
    if answer.kind != Kind.RECOMMENDED or answer.speedup is None or answer.speedup_interval is None:
        return []
    wide = is_wide(answer.speedup, Interval(*answer.speedup_interval))
    figures = [("times as fast as one process", ratio(answer.speedup, answer.speedup_interval, range_only=wide))]
    if answer.accuracy_change is not None and answer.accuracy_change_interval is not None:
        points = 100 * Interval(*answer.accuracy_change_interval).half
        figures.append(("points of accuracy against one process", f"{100 * answer.accuracy_change:+.1f} ±{points:.1f}"))
    return figures


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
