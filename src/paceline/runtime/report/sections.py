"""The sections of a page below its overview, composed of charts, timelines and layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from paceline.runtime.report.charts import Line, chart, fitting, histogram_chart, legend, logarithmic
from paceline.runtime.report.cluster_events import cluster_events
from paceline.runtime.report.curves import (
    AXES,
    Curve,
    envelope,
    evaluation_curve,
    histogram,
    loss_curve,
    measured_curve,
    metrics,
    staleness_curve,
)
from paceline.runtime.report.formatting import duration, number, share
from paceline.runtime.report.holdings import holdings
from paceline.runtime.report.lanes import Lane
from paceline.runtime.report.layers import layers
from paceline.runtime.report.overview import colours_of, section
from paceline.runtime.report.reading import Reading
from paceline.runtime.report.run_stats import RunStats
from paceline.runtime.report.settings import notes
from paceline.runtime.report.timeline import time_bars, timeline
from paceline.runtime.runs.time_accounting import Time
from paceline.runtime.runs.trace import Kind

POINTS = 4000  # of all curves of a chart together
MOST_CHARTS = 12  # of what was evaluated
INSIDE_DDP = (
    "PyTorch's DDP communicates while it computes, and its trace does not tell the two and waiting apart: that time is "
    "hatched."
)


# --- curves ---------------------------------------------------------------------------------------------------------


def learning(readings: Sequence[Reading]) -> str:
    """Loss and evaluations over time, updates and samples; the page shows one of the three axes at a time."""
    curves = [loss_curve(reading) for reading in readings]
    names = list(dict.fromkeys(name for reading in readings for name in metrics(reading)))[:MOST_CHARTS]
    if not any(curves) and not names:
        return ""
    colours = colours_of([reading.plan for reading in readings])
    many = len(readings) > 12
    bins = max(20, min(160 if len(readings) == 1 else 80, POINTS // len(readings)))
    body = ""
    for axis in AXES:
        charts = _losses("Training loss", _lines(readings, curves, axis, bins), axis)
        for name in names:
            lines = _lines(readings, [evaluation_curve(r, name) for r in readings], axis, bins, dots=not many)
            title = name.replace("_", " ").capitalize()
            charts += (
                _losses(title, lines, axis)
                if name == "test_loss"
                else chart(title, lines, axis, percent="accuracy" in name)
            )
        body += f'<div class="charts over-{axis}">{charts}</div>'
    names_of = {reading.plan: reading.short for reading in readings}
    key = legend([(names_of[plan], colours[plan]) for plan in colours], "plan") if len(readings) > 1 else ""
    lost = sum(int((~np.isfinite(r.trace.of_kind(Kind.COMPUTE)["value"])).sum()) for r in readings)
    note = "A line shows means over parts of the run" + (", the band their minimum and maximum." if not key else ".")
    note += f" {lost:,} losses were not finite and are left out." if lost else ""
    return section("Learning", f'<div class="tabs">{_switches()}{key}{body}</div>', note)


def _switches() -> str:
    """What is on the horizontal axis, and how losses are drawn; without a script, by the style sheet alone."""
    axes = {f"axis-{axis}": f"over {'time' if axis == 'seconds' else axis}" for axis in AXES}
    scales = {"scale-log": "logarithmic loss", "scale-linear": "linear loss"}
    return "".join(
        f'<input type="radio" name="{word}" id="{name}"{" checked" * (not place)}><label for="{name}">{label}</label>'
        for word, entries in (("axis", axes), ("scale", scales))
        for place, (name, label) in enumerate(entries.items())
    )


def _lines(
    readings: Sequence[Reading], curves: Sequence[Curve], axis: str, bins: int, dots: bool = False
) -> list[Line]:
    """A line for each run that has the curve."""
    colours, many = colours_of([reading.plan for reading in readings]), len(readings) > 12
    return [
        Line(r.name, colours[r.plan], envelope(c.over(axis), c.values, bins), dots=dots, faint=many)
        for r, c in zip(readings, curves, strict=True)
        if c
    ]


def _losses(title: str, lines: Sequence[Line], axis: str) -> str:
    """A loss twice, on a logarithmic and on a linear scale; once where it cannot be logarithmic."""
    scale = logarithmic(lines)
    if scale is None:
        return chart(title, lines, axis)
    linear = chart(title, lines, axis, fitting(lines, log=False) if lines else None, css="linear")
    return chart(title, lines, axis, scale, css="log") + linear


def measurements(reading: Reading) -> str:
    """The learning rate, the gradient's norm and the workers' memory over a run; empty where they are not recorded."""
    drawn = ""
    for kind, title in ((Kind.LEARNING_RATE, "Learning rate"), (Kind.GRADIENT_NORM, "Gradient norm")):
        curve = measured_curve(reading, kind)
        line = Line(title, "run-0", envelope(curve.seconds, curve.values, 120)) if curve else None
        drawn += chart(title, [line], "seconds") if line else ""
    workers = [(n, measured_curve(reading, Kind.MEMORY, n)) for n in range(min(reading.workers, MOST_CHARTS))]
    lines = [
        Line(f"worker {n}", f"run-{n % 8}", envelope(curve.seconds, curve.values / 2**20, 120))
        for n, curve in workers
        if curve
    ]
    drawn += chart("Memory of each worker, in MiB", lines, "seconds", fitting(lines, zero=True)) if lines else ""
    note = "Measured about twice a second by each worker. The norm is that of all gradients, before clipping."
    return section("Optimizer and memory", f"<div class=charts>{drawn}</div>", note) if drawn else ""


def staleness(reading: Reading) -> str:
    """The staleness of one run, over time and as a histogram; empty where there is none."""
    seconds, values = staleness_curve(reading.trace)
    if not len(values) or not values.any():
        return ""
    line = Line("staleness", "run-0", envelope(seconds, values, 120))
    body = chart("Staleness over time", [line], "seconds")
    body += histogram_chart("Staleness of gradients", histogram(values), "updates between pull and push")
    note = "Updates by other workers between a worker's pull and its push."
    return section("Staleness", f"<div class=charts>{body}</div>", note)


def staleness_of_all(readings: Sequence[Reading]) -> str:
    """The staleness of several runs over time."""
    colours, bins = colours_of([r.plan for r in readings]), max(20, min(80, POINTS // len(readings)))
    lines, key = [], dict[str, str]()
    for reading in readings:
        seconds, values = staleness_curve(reading.trace)
        if len(values) and values.any():
            colour = colours[reading.plan]
            key[reading.short] = colour
            lines.append(Line(reading.name, colour, envelope(seconds, values, bins), faint=len(readings) > 12))
    drawn = chart("Mean staleness", lines, "seconds")
    return section("Staleness", f"{legend(list(key.items()))}<div class=charts>{drawn}</div>") if drawn else ""


# --- time -----------------------------------------------------------------------------------------------------------


def times(all_stats: Sequence[RunStats]) -> str:
    """Where the time of each run went."""
    rows = [(f.name, f.shares) for f in all_stats if f.shares]
    note = "Shares of all workers' time. " + INSIDE_DDP * any(not f.divided for f in all_stats)
    return f"<h3>Where the time went</h3><p class=note>{note}</p>{time_bars(rows)}" if 0 < len(rows) <= 24 else ""


# --- one run --------------------------------------------------------------------------------------------------------


def of_run(reading: Reading, stats: RunStats, lanes: Sequence[Lane], spans: int) -> str:
    """The details of one run: its workers' time, the staleness of its gradients, its model."""
    deaths = [(int(row["worker"]), float(row["end"]) / 1e9) for row in reading.trace.of_kind(Kind.DEATH)]
    drawn = timeline(lanes, deaths, spans)
    note = "Each strip is a worker; at each point, its height is divided into the kinds of time."
    body = section("Timeline", drawn, note)
    rows = [(_whose(lane, stats), _parts(lane)) for lane in lanes[:64]]
    if len(lanes) > 1:
        rows.append(("all workers", stats.shares))
    body += section("Where the time went", time_bars(rows) if rows else "", _time_note(reading))
    body += (
        measurements(reading) + staleness(reading) + section("Events of the processes", cluster_events(reading.events))
    )
    holdings_section = section(
        "Who holds what", holdings(reading.record.model), "Bytes of each layer, between two updates."
    )
    return body + section("Model", layers(reading.record.model)) + holdings_section


def _whose(lane: Lane, stats: RunStats) -> str:
    slow = stats.stragglers.get(lane.worker)
    return f"worker {lane.worker}" + (f", a straggler at {share(slow)}" if slow else "")


def _parts(lane: Lane) -> dict[str, float]:
    total = float(lane.seconds.sum()) or 1.0
    return {time.name.lower(): float(lane.seconds[time]) / total for time in Time}


def _time_note(reading: Reading) -> str:
    """How the times of this plan are to be read."""
    if not reading.divided:
        return INSIDE_DDP
    if reading.trace.of_kind(Kind.COLLECTIVE).size:
        return "A collective waits several times; its waiting is drawn first, as one piece."
    if reading.record.engine == "virtual":
        return "What travels from a worker to a shard counts as update, the way back as other."
    if reading.workers > 1:
        return "Workers that share memory copy parameters while they update them: this is part of update."
    return ""


def one_by_one(
    readings: Sequence[Reading], all_stats: Sequence[RunStats], laid: Sequence[Sequence[Lane]], spans: int
) -> str:
    """The details of each run, folded."""
    models = [reading.record.model for reading in readings]
    same = all(model == models[0] for model in models)
    body = ""
    for reading, f, lanes in zip(readings, all_stats, laid, strict=True):
        trimmed = _without_model(reading) if same and models[0] else reading
        inside = notes(trimmed) + of_run(trimmed, f, lanes, spans)
        body += f"<details><summary>{escape(f.name)}<small>{escape(_short(f))}</small></summary>{inside}</details>\n"
    return body


def common_model(readings: Sequence[Reading]) -> str:
    """The model, where all runs have the same."""
    models = [reading.record.model for reading in readings]
    return section("Model", layers(models[0])) if all(model == models[0] for model in models) else ""


def _without_model(reading: Reading) -> Reading:
    from dataclasses import replace

    missing = tuple(line for line in reading.missing if "outline" not in line)
    return replace(reading, record=reading.record.with_(model=()), missing=missing)


def _short(stats: RunStats) -> str:
    return f"{number(stats.samples_per_second)} samples/s, {duration(stats.seconds)}"


# --- terms ---

GLOSSARY = {
    "update": "one step of the parameters; also the time it takes",
    "compute": "gradients of one's own samples, with fetching them",
    "communicate": "moving numbers between workers",
    "wait": "for others: in a collective, at a gate, for a lock",
    "other": "between these: bookkeeping, copying a snapshot for evaluation",
    "not measured": "time inside PyTorch's DDP, which computes, communicates and waits at once",
    "staleness": "updates that were made between a worker's pull and its own push",
    "ceiling": "the speed of as many workers that never communicate",
    "speed-up": "speed over that of the best single process: the median of the ratios of all rounds",
    "round": "each plan, each single process and each ceiling, timed one after another",
    "±": "half an interval that holds the median of the rounds with 90% confidence; of an accuracy, in points, from "
    "the number of test samples alone",
    "common accuracy": "the best test accuracy that every run reached and never left again",
}


def glossary() -> str:
    """The terms of the page."""
    entries = "".join(f"<dt>{word}</dt><dd>{meaning}</dd>" for word, meaning in GLOSSARY.items())
    return section("Glossary", f"<dl class=words>{entries}</dl>")
