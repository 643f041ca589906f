"""Draws lanes: one strip of time per worker. The static picture shows shares per bin; the script zooms in to spans."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paceline.runtime.report.charts import legend, ticks
from paceline.runtime.report.formatting import NONE, duration, share
from paceline.runtime.report.lanes import Lane, binned, merged, packed
from paceline.runtime.runs.time_accounting import Time

BINS = 180  # of a static strip
MOST_LANES = 32
STACK = (Time.COMPUTE, Time.UPDATE, Time.COMMUNICATE, Time.WAIT, Time.OTHER)  # from below; what is left is hatched
LABELS = {Time.UNMEASURED: "not measured"}
#: What computing is part of, where it is not measured.
MIXED = (Time.COMPUTE, Time.COMMUNICATE, Time.WAIT)


def _kinds(unmeasured: bool) -> list[Time]:
    """The kinds of time that a picture has a colour for."""
    return [*STACK, *[Time.UNMEASURED] * unmeasured]


def _key(unmeasured: bool) -> str:
    return legend([(_label(kind), f"time-{kind.name.lower()}") for kind in _kinds(unmeasured)], "time")


def _label(kind: Time) -> str:
    return LABELS.get(kind, kind.name.lower())


def timeline(lanes: Sequence[Lane], deaths: Sequence[tuple[int, float]], spans: int) -> str:
    """The workers of a run; `spans` is the number of spans per lane that are kept for zooming."""
    if not lanes:
        return ""
    end = int(max(lane.edges[-1] for lane in lanes))
    shown = lanes[:MOST_LANES]
    strips = "".join(_strip(lane, end, [at for who, at in deaths if who == lane.worker], spans) for lane in shown)
    marks = "".join(
        f'<i class="x" style="left:{value / (end / 1e9):.1%}">{text}</i>' for value, text in ticks(0, end / 1e9, 6)
    )
    left_out = f"<p>The first {MOST_LANES} of {len(lanes)} workers are shown.</p>" if len(lanes) > len(shown) else ""
    coarse = any(len(lane.kinds) > spans for lane in shown)
    note = "<p class=note>The run has too many spans to keep all: zoomed in, bins show shares, not order.</p>" * coarse
    return (
        f'<figure class="timeline" data-end="{end}">{_key(any(_is_mixed(lane) for lane in shown))}'
        f'<div class="lanes">{strips}</div><div class="marks">{marks}</div><div class="axis">seconds</div>'
        f'<output class="read" aria-live="polite"></output>{left_out}{note}</figure>'
    )


def _is_mixed(lane: Lane) -> bool:
    return bool(lane.seconds[Time.UNMEASURED])


def _strip(lane: Lane, end: int, deaths: Sequence[float], spans: int) -> str:
    table = binned(lane, end, BINS)
    paths, tops = "", table[:, list(STACK)].cumsum(1)
    for place in reversed(range(len(STACK))):
        paths += f'<path style="fill:var(--time-{STACK[place].name.lower()})" d="{_steps(tops[:, place].tolist())}"/>'
    parts = [
        f"{share(float(part))} {_label(time)}"
        for time, part in zip(Time, lane.seconds / max(1e-9, lane.seconds.sum()), strict=True)
    ]
    summary = f"Worker {lane.worker}, {duration(float(lane.edges[-1]) / 1e9)}: {', '.join(parts)}"
    died = "".join(
        f'<i class="death" style="left:{at / (end / 1e9):.2%}" title="died after {duration(at)}">died</i>'
        for at in deaths
    )
    unit = max(1000, end >> 20)
    data = packed(merged(lane, spans), unit)
    return (
        f'<div class="lane" data-worker="{lane.worker}" data-unit="{unit}" data-spans="{data}">'
        f'<b>{lane.worker}</b><div class="strip{" hatched" * _is_mixed(lane)}">'
        f'<svg viewBox="0 0 {BINS} 100" preserveAspectRatio="none" role="img" aria-label="{escape(summary)}">'
        f"{paths}</svg>"
        f"{died}</div></div>"
    )


def _steps(tops: Sequence[float]) -> str:
    """The path of columns of width one and these heights, filled down to the base line."""
    text, height, run = ["M0 100"], 0, 0
    for top in tops:
        up = round(100 * float(top))
        if up != height:
            text.append((f"h{run}" if run else "") + f"v{height - up}")
            height, run = up, 0
        run += 1
    return "".join(text) + f"h{run}V100z"


def time_bars(rows: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Rows of (name, share of each kind), as bars and as a table; on a phone each row is a card."""
    unmeasured = any(parts.get("unmeasured") for _, parts in rows)
    kinds = _kinds(unmeasured)
    head = "".join(f"<th scope=col>{_label(kind)}</th>" for kind in kinds)
    body = ""
    for whose, parts in rows:
        cells = "".join(f'<td data-label="{_label(kind)}">{_share(parts, kind)}</td>' for kind in kinds)
        bar = "".join(
            f'<i style="width:{parts.get(kind.name.lower(), 0.0):.2%};background:var(--time-{kind.name.lower()})"></i>'
            for kind in kinds
        )
        bar = f'<td class="bar"><div class="stack">{bar}</div></td>'
        body += f"<tr><th scope=row>{escape(whose)}</th>{bar}{cells}</tr>"
    return (
        f"{_key(unmeasured)}<table class='times shares'><caption class=unseen>Where the time went</caption>"
        f"<thead><tr><td></td><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _share(parts: dict[str, float], kind: Time) -> str:
    """The share of a kind of time; a dash where it was not told from others."""
    hidden = parts.get("unmeasured") and kind in MIXED
    return NONE if hidden else share(parts.get(kind.name.lower(), 0.0), 0)
