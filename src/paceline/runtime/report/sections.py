"""The sections of a page below its overview, composed of charts, timelines and layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from paceline.runtime.report.charts import (
    ChartLine,
    chart,
    fitting,
    histogram_chart,
    legend,
    logarithmic,
    time_bars,
    timeline,
)
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
from paceline.runtime.report.formatting import count, duration, number, share, size
from paceline.runtime.report.overview import colours_of, section
from paceline.runtime.report.reading import Lane, Reading, RunStats
from paceline.runtime.report.settings import notes
from paceline.runtime.runs.live import EventKind, RunEvent
from paceline.runtime.runs.record import LayerRecord
from paceline.runtime.runs.time_accounting import Time
from paceline.runtime.runs.trace import Kind

# Draws a model: a row per layer with its sizes, and on the left a graph of which layer's output reaches which.

ROW = 26  # pixels, as in the style sheet
MOST = 400  # layers that are listed at most


def layers(model: Sequence[LayerRecord]) -> str:
    if not model:
        return ""
    shown = model[:MOST]
    total = sum(layer.parameters for layer in model)
    most = max((layer.parameters for layer in model), default=0)
    body = ""
    for place, layer in enumerate(shown):
        graph = f'<td rowspan="{len(shown)}" class=graph>{_graph(shown)}</td>' if place == 0 else ""
        body += f"<tr>{graph}{_layer_row(layer, total, most)}</tr>"
    rest = f"<p>{len(model) - MOST} further layers are not listed.</p>" if len(model) > MOST else ""
    return (
        f"<div class=scroll tabindex='0'><table class=layers><caption class=unseen>Layers of the model</caption>"
        f"<thead><tr><td></td><th scope=col>layer</th><th scope=col>type</th><th scope=col>output of a batch</th>"
        f"<th scope=col class=n>parameters</th><th scope=col class=n>share</th><td></td></tr></thead>"
        f"<tbody>{body}</tbody><tfoot><tr><td></td><th scope=row>all</th><td></td><td></td>"
        f"<td class=n>{count(total)}</td><td></td><td></td></tr></tfoot></table></div>{rest}"
    )


def _layer_row(layer: LayerRecord, total: int, most: int) -> str:
    parameters = layer.parameters
    reach = " × ".join(map(str, layer.output or ()))
    inside = "; ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in layer.shapes.items())
    width = parameters / most if most else 0.0
    return (
        f"<th scope=row>{escape(layer.name or 'model')}</th>"
        f'<td title="{escape(inside)}">{escape(layer.type)}</td><td>{escape(reach)}</td>'
        f"<td class=n>{count(parameters) if parameters else ''}</td>"
        f"<td class=n>{share(parameters / total) if parameters and total else ''}</td>"
        f'<td class=bar><div class=stack><i style="width:{width:.2%};background:var(--time-compute)"></i></div></td>'
    )


def _graph(model: Sequence[LayerRecord]) -> str:
    """A dot per layer; straight lines to the next one, arcs over those between."""
    drawn, widest = "", 0
    for place, layer in enumerate(model):
        y = place * ROW + ROW // 2
        drawn += f'<circle cx="0" cy="{y}" r="{4 if layer.parameters else 2.5}"/>'
        for source in layer.after:
            if not 0 <= source < place:
                continue
            above = source * ROW + ROW // 2
            reach = 0 if place - source == 1 else min(44, 6 + 4 * (place - source))
            widest = max(widest, reach)
            bow = f"C{-reach} {above} {-reach} {y} 0 {y}" if reach else f"V{y}"
            drawn += f'<path d="M0 {above}{bow}"/>'
    width, height = widest + 12, len(model) * ROW
    return (
        f'<svg width="{width}" height="{height}" viewBox="{-width + 6} 0 {width} {height}" role="img" '
        f'aria-label="Which layer\'s output reaches which">{drawn}</svg>'
    )


# Draws who holds what: a row per layer, a column per worker, shaded by the worker's share of the layer.

WORKERS, LAYERS = 32, 400  # of a matrix, at most


def holdings(model: Sequence[LayerRecord]) -> str:
    """Return the matrix; empty where every worker holds the whole model."""
    rows = [layer for layer in model if any(layer.held)]
    if not rows:
        return ""
    workers = len(rows[0].held)
    shown = range(min(workers, WORKERS))
    head = "".join(f"<th scope=col class=n>worker {worker}</th>" for worker in shown)
    body = "".join(_row(layer, shown) for layer in rows[:LAYERS])
    sums = "".join(f"<td class=n>{size(sum(layer.held[worker] for layer in rows))}</td>" for worker in shown)
    left_out = [f"{workers - WORKERS} further workers"] if workers > WORKERS else []
    left_out += [f"{len(rows) - LAYERS} further layers"] if len(rows) > LAYERS else []
    rest = f"<p>{' and '.join(left_out)} are not listed.</p>" if left_out else ""
    return (
        f"<div class=scroll tabindex='0'><table class=layers><caption class=unseen>Bytes of each layer at each worker"
        f"</caption><thead><tr><th scope=col>layer</th>{head}</tr></thead><tbody>{body}</tbody>"
        f"<tfoot><tr><th scope=row>all</th>{sums}</tr></tfoot></table></div>{rest}"
    )


def _row(layer: LayerRecord, shown: range) -> str:
    most = max(layer.held)
    cells = "".join(_cell(layer.held[worker], most) for worker in shown)
    return f"<tr><th scope=row>{escape(layer.name or 'model')}</th>{cells}</tr>"


def _cell(amount: int, most: int) -> str:
    if not amount:
        return "<td></td>"
    shade = f"color-mix(in srgb, var(--time-compute) {round(30 * amount / most)}%, transparent)"
    return f'<td class=n title="{count(amount)} bytes" style="background:{shade}">{size(amount)}</td>'


# The events of a run on a cluster, and what `paceline watch` found of any run, as rows of the page.

SHOWN = 60  # events at most
TOLD = set(EventKind) - {EventKind.STARTED, EventKind.LEASING}
ALWAYS = {EventKind.HUNG}


def cluster_events(events: Sequence[RunEvent]) -> str:
    """What happened to the processes of a run after its servers first served, and which of them hung at any time."""
    begun = (n for n, event in enumerate(events) if event.kind in (EventKind.LEASING, EventKind.GROUP))
    start = next(begun, len(events)) + 1
    notable = [event for at, event in enumerate(events) if event.kind in (TOLD if at >= start else ALWAYS)]
    lines = "".join(
        f"<tr><td>{event.at - events[0].at:.2f} s<td>{escape(_describe(event))}</tr>" for event in notable[:SHOWN]
    )
    more = f"<p class=note>{len(notable) - SHOWN} more are in events.jsonl.</p>" if len(notable) > SHOWN else ""
    return f"<table>{lines}</table>{more}" if lines else ""


def _describe(event: RunEvent) -> str:
    """Describe an event in a line."""
    members = ", ".join(map(str, event.members))
    if event.kind in (EventKind.VIEW, EventKind.SERVING):
        does = "serve" if event.kind is EventKind.SERVING else "are to hold"
        return f"servers {members} {does} shard {event.shard}" + "; pushes may be missing" * event.lossy
    if event.kind is EventKind.GROUP:
        return f"ranks {members} go on, as group {event.number}"
    if event.kind is EventKind.HUNG:
        return f"hangs, {event.why}"
    if event.kind in (EventKind.AGAIN, EventKind.SHARD_LOST):
        return f"{event.why} are computed again" if event.why else f"shard {event.shard} is lost"
    return f"{event.process} {event.number} of rank {event.rank} {event.why or 'has ended'}"


POINTS = 4000  # of all curves of a chart together
MOST_CHARTS = 12  # of what was evaluated
INSIDE_DDP = (
    "PyTorch's DDP communicates while it computes, and its trace does not tell the two and waiting apart: that time is "
    "hatched."
)


# curves.


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
) -> list[ChartLine]:
    """A line for each run that has the curve."""
    colours, many = colours_of([reading.plan for reading in readings]), len(readings) > 12
    return [
        ChartLine(r.name, colours[r.plan], envelope(c.over(axis), c.values, bins), dots=dots, faint=many)
        for r, c in zip(readings, curves, strict=True)
        if c
    ]


def _losses(title: str, lines: Sequence[ChartLine], axis: str) -> str:
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
        line = ChartLine(title, "run-0", envelope(curve.seconds, curve.values, 120)) if curve else None
        drawn += chart(title, [line], "seconds") if line else ""
    workers = [(n, measured_curve(reading, Kind.MEMORY, n)) for n in range(min(reading.workers, MOST_CHARTS))]
    lines = [
        ChartLine(f"worker {n}", f"run-{n % 8}", envelope(curve.seconds, curve.values / 2**20, 120))
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
    line = ChartLine("staleness", "run-0", envelope(seconds, values, 120))
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
            lines.append(ChartLine(reading.name, colour, envelope(seconds, values, bins), faint=len(readings) > 12))
    drawn = chart("Mean staleness", lines, "seconds")
    return section("Staleness", f"{legend(list(key.items()))}<div class=charts>{drawn}</div>") if drawn else ""


# time.


def times(all_stats: Sequence[RunStats]) -> str:
    """Where the time of each run went."""
    rows = [(f.name, f.shares) for f in all_stats if f.shares]
    note = "Shares of all workers' time. " + INSIDE_DDP * any(not f.divided for f in all_stats)
    return f"<h3>Where the time went</h3><p class=note>{note}</p>{time_bars(rows)}" if 0 < len(rows) <= 24 else ""


# one run.


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


# terms.

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
