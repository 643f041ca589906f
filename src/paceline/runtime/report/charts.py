"""Draws curves, histograms and lanes as HTML with embedded SVG, which stretches to any width; its text does not.

The curves are in an SVG of 1000 x 1000 that is stretched, and the labels beside it in HTML, so that they are as legible
on a phone as in print. The page's script reads values off a curve from its path and from the ends of the scales.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.runtime.report.curves import Envelope
from paceline.runtime.report.formatting import NONE, duration, number, share
from paceline.runtime.report.reading import Lane, binned, merged, packed
from paceline.runtime.runs.time_accounting import Time

Floats = npt.NDArray[np.float64]
SIDE = 1000  # of the SVG's square
LOG_FROM = 40.0  # ratio of the largest to the smallest value from which on a scale is logarithmic


class ChartLine(NamedTuple):
    """One curve of a chart."""

    label: str
    colour: str  # of the style sheet: run-0 to run-7, or run-other
    curve: Envelope
    dots: bool = False
    faint: bool = False


class Scale(NamedTuple):
    """An axis: its range, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def place(self, values: Floats) -> Floats:
        """Positions along the axis, from 0 to 1."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        values = np.log10(np.maximum(values, 1e-300)) if self.log else np.asarray(values, float)
        return np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        """Tick positions and labels."""
        return _decades(self.low, self.high) if self.log else ticks(self.low, self.high, about)


def ticks(low: float, high: float, about: int = 5) -> list[tuple[float, str]]:
    """About so many round numbers within the range, with their labels."""
    if not high > low:
        return [(low, number(low))]
    raw = (high - low) / about
    step = 10.0 ** math.floor(math.log10(raw))
    step *= next(f for f in (1, 2, 5, 10) if f * step >= raw)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [(value, f"{value:,.{digits}f}") for value in values]


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten; where there are too few, also their doubles and fives, or round numbers."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high) + 1e-9) + 1)
    every = -(-len(powers) // 6) or 1
    for steps in ((1,), (1, 3), (1, 2, 5)):
        values = [step * 10.0**power for power in powers[::every] for step in steps]
        inside = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(inside) > 2:
            break
    return [(value, f"{value:g}") for value in inside] if len(inside) > 1 else ticks(low, high, 3)


def fitting(lines: Sequence[ChartLine], zero: bool = False, log: bool = True) -> Scale:
    """A scale that fits all lines; with `log`, logarithmic where they span too many orders of magnitude."""
    drawn = [line.curve for line in lines]
    bands = [part for curve in drawn for part in (curve.low, curve.high)] if len(drawn) == 1 else []
    values = np.concatenate([*(curve.mean for curve in drawn), *bands])
    low, high = float(values.min()), float(values.max())
    if log and not zero and low > 0 and high / low > LOG_FROM:
        return Scale(low * 0.9, high * 1.1, True)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return Scale(0.0 if zero or 0 <= low < (high - low) * 0.25 else low - margin, high + margin)


def chart(
    title: str, lines: Sequence[ChartLine], x_label: str, y: Scale | None = None, percent: bool = False, css: str = ""
) -> str:
    """A chart of curves over a common axis; `css` is a class for the style sheet."""
    lines = [line for line in lines if len(line.curve.x)]
    if not lines:
        return ""
    y = y or fitting(lines)
    x = Scale(0.0, max(float(line.curve.x.max()) for line in lines) or 1.0)
    band = len(lines) == 1
    drawn = "".join(_line(line, x, y, band) for line in lines)
    summary = f"{title}, by {x_label}: {'; '.join(_in_words(line, percent) for line in lines[:8])}"
    unit = " (%)" if percent else " (logarithmic scale)" if y.log else ""
    return (
        f'<figure class="chart {css}"><figcaption>{escape(title)}<small>{unit}</small></figcaption>'
        f'{_plot(drawn, x, y, summary, percent)}<div class="axis">{escape(x_label)}</div></figure>'
    )


def _in_words(line: ChartLine, percent: bool) -> str:
    """A curve for screen readers."""
    first, last = (_value(float(line.curve.mean[place]), percent) for place in (0, -1))
    return f"{line.label} from {first} to {last}"


def _value(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else number(value)


def _plot(drawn: str, x: Scale, y: Scale, summary: str, percent: bool = False) -> str:
    """The SVG with its grid, and the labels along its sides."""
    grid, words = "", ""
    for value, text in y.ticks():
        top = 1 - float(y.place(np.array(value)))
        grid += f'<path class="grid" d="M0 {top * SIDE:.0f}h{SIDE}"/>'
        words += f'<i class="y" style="top:{top:.1%}">{_tick(value, text, percent)}</i>'
    for value, text in x.ticks(6):
        words += f'<i class="x" style="left:{float(x.place(np.array(value))):.1%}">{text}</i>'
    data = f'data-x="{x.low:g} {x.high:g}" data-y="{y.low:g} {y.high:g}"'
    data += " data-log" * y.log + " data-percent" * percent
    return (
        f'<div class="plot"><svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(summary)}" {data}>{grid}{drawn}</svg>{words}</div>'
    )


def _tick(value: float, text: str, percent: bool) -> str:
    """The label of a tick on the vertical axis."""
    return f"{value * 100:.4g}%" if percent else text


def _line(line: ChartLine, x: Scale, y: Scale, band: bool) -> str:
    curve, colour = line.curve, f"var(--{line.colour})"
    across = x.place(curve.x) * SIDE
    drawn = ""
    if band and not np.array_equal(curve.low, curve.high):
        upper, back = _points(across, y, curve.high), _points(across[::-1], y, curve.low[::-1])
        drawn += f'<path class="band" style="fill:{colour}" d="{_path(upper + back)}z"/>'
    points = _points(across, y, curve.mean)
    faint = " faint" * line.faint
    name = escape(line.label, quote=True)
    drawn += f'<path class="line{faint}" style="stroke:{colour}" data-name="{name}" d="{_path(points)}"/>'
    if len(points) == 1 or (line.dots and len(points) <= 40):
        spots = "".join(f"M{px} {py}h0" for px, py in points)
        drawn += f'<path class="dots" style="stroke:{colour}" d="{spots}"/>'
    return drawn


def _points(across: Floats, y: Scale, values: Floats) -> list[tuple[int, int]]:
    up = (1 - y.place(values)) * SIDE
    return list(zip(across.round().astype(int).tolist(), up.round().astype(int).tolist(), strict=True))


def _path(points: Sequence[tuple[int, int]]) -> str:
    """A path in relative steps, which are shorter than absolute positions."""
    (x, y), text = points[0], [f"M{points[0][0]} {points[0][1]}"]
    for px, py in points[1:]:
        if (px, py) != (x, y):
            text.append(f"l{px - x} {py - y}")
            x, y = px, py
    return "".join(text) + ("h0" if len(text) == 1 else "")


def histogram_chart(title: str, bars: Sequence[tuple[int, int, int]], x_label: str) -> str:
    """A histogram of (from, to, count) bars, as shares of the total."""
    if not bars:
        return ""
    total = sum(count for *_, count in bars)
    y = Scale(0.0, max(count for *_, count in bars) / total * 1.04)
    width = SIDE / len(bars)
    drawn = ""
    words = []
    for place, (low, high, many) in enumerate(bars):
        height = float(y.place(np.array(many / total))) * SIDE
        span = f"{low}" if low == high else f"{low} to {high}"
        label = f"{span}: {many / total:.1%}"
        words.append(label)
        drawn += (
            f'<rect class="bar" x="{place * width + width * 0.06:.1f}" y="{SIDE - height:.1f}" '
            f'width="{width * 0.88:.1f}" height="{height:.1f}"><title>{label}</title></rect>'
        )
    every = -(-len(bars) // 8)
    labels = "".join(
        f'<i class="x" style="left:{(place + 0.5) / len(bars):.1%}">{low}</i>'
        for place, (low, _, _) in enumerate(bars)
        if place % every == 0
    )
    grid = ""
    for value, _ in y.ticks(4):
        top = 1 - float(y.place(np.array(value)))
        grid += f'<path class="grid" d="M0 {top * SIDE:.0f}h{SIDE}"/>'
        labels += f'<i class="y" style="top:{top:.1%}">{_tick(value, "", True)}</i>'
    alt_text = f"{title}: {'; '.join(words)}"
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption><div class="plot">'
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" aria-label="{escape(alt_text)}">'
        f'{grid}{drawn}</svg>{labels}</div><div class="axis">{escape(x_label)}</div></figure>'
    )


def logarithmic(lines: Sequence[ChartLine]) -> Scale | None:
    """A logarithmic scale that fits all lines; None where a value is not positive."""
    values = np.concatenate([line.curve.mean for line in lines if len(line.curve.x)] or [np.zeros(1)])
    low, high = float(values.min()), float(values.max())
    return Scale(low * 0.9, high * 1.1, True) if low > 0 else None


def legend(entries: Sequence[tuple[str, str]], name: str = "") -> str:
    """A legend of (label, colour) entries, with what they are called together."""
    items = "".join(f'<li><b style="background:var(--{colour})"></b>{escape(label)}</li>' for label, colour in entries)
    return f'<ul class="legend">{f"<li>{escape(name)}:</li>" if name else ""}{items}</ul>'


# Draws lanes: one strip of time per worker. The static picture shows shares per bin; the script zooms in to spans.

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
