"""The page of a tuning: the best so far over time, learning curves with their stops, slices, and the workers' time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.planning.tuner.optuna import distribution
from paceline.planning.tuner.result import Account
from paceline.planning.tuner.space import Space
from paceline.planning.tuner.study import FAILURE, STOPPED, Study, TrialRecord, curve_of_best
from paceline.runtime.report.charts import SIDE, ChartLine, chart, ticks
from paceline.runtime.report.curves import envelope
from paceline.runtime.report.formatting import number
from paceline.runtime.report.overview import section
from paceline.runtime.report.page import document

# Pictures of a tuning as SVG: slices, parallel coordinates, and what each worker did when.

MOST_POINTS = 2000  # trials in a picture
HEIGHT = 0.09  # of a line of text, as a share of the picture's
WIDTH = 0.03  # of a letter


class Axis(NamedTuple):
    """An axis with a place from 0 to 1 for each value."""

    name: str
    place: Callable[[Any], float]
    marks: list[tuple[float, str]]


def axis_of(name: str, values: Sequence[Any], log: bool = False) -> Axis:
    """Return an axis for these values: a scale for numbers, a place each for anything else."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        words = sorted({str(value) for value in values})
        places = {word: (at + 0.5) / len(words) for at, word in enumerate(words)}
        return Axis(name, lambda value: places[str(value)], [(at, word) for word, at in places.items()])
    low, high = float(min(values)), float(max(values))
    if log and low > 0:
        return _logarithmic(name, low, high)
    width = (high - low) or 1.0
    marks = [((value - low) / width, text) for value, text in ticks(low, high, 4)]
    return Axis(name, lambda value: (float(value) - low) / width, marks)


def _logarithmic(name: str, low: float, high: float) -> Axis:
    span = math.log(high / low) or 1.0
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    values = [10.0**power for power in powers] if len(powers) > 1 else [low, high]
    marks = [(math.log(value / low) / span, number(value)) for value in values]
    return Axis(name, lambda value: math.log(float(value) / low) / span, marks)


def slice_of(axis: Axis, values: Axis, points: Sequence[tuple[Any, float | None, int, bool]]) -> str:
    """Draw the metric over one parameter: (parameter, metric, trial, whether it is the best) for each trial."""
    spots = "".join(
        f'<path class="dots{" loud" * best}" style="stroke:var(--{"run-1" if best else "run-0"});opacity:'
        f'{1 if best else 0.5}" d="M{axis.place(x) * SIDE:.0f} {(1 - values.place(y)) * SIDE:.0f}h0">'
        f"<title>trial {trial}: {escape(f'{axis.name}={x}')}, {number(y, 4)}</title></path>"
        for x, y, trial, best in points[:MOST_POINTS]
        if y is not None
    )
    return _figure(f"{values.name} by {axis.name}", spots, _below(axis) + _beside(values), axis.name)


def parallel(axes: Sequence[Axis], rows: Sequence[tuple[list[Any], float, int]]) -> str:
    """Draw a line for each trial through its values on all axes; the last axis is the metric. Good ones are dark."""
    gap = SIDE / max(1, len(axes) - 1)
    lines, words = "", ""
    crowded = sum(len(axis.name) for axis in axes) * WIDTH > 1
    at_edge = ";transform:translateX(-100%)"
    for values, goodness, trial in sorted(rows, key=lambda row: row[1])[-MOST_POINTS:]:
        points = [
            (n * gap, (1 - a.place(v)) * SIDE)
            for n, (a, v) in enumerate(zip(axes, values, strict=True))
            if v is not None
        ]
        path = "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        colour, opacity = ("run-1", 0.9) if goodness >= 0.9 else ("run-0", 0.12 + 0.4 * goodness)
        lines += (
            f'<path class="line" style="stroke:var(--{colour});opacity:{opacity:.2f}" d="M{path}">'
            f"<title>trial {trial}</title></path>"
        )
    for place, axis in enumerate(axes):
        lines += f'<path class="grid" d="M{place * gap:.0f} 0v{SIDE}"/>'
        offset = place / max(1, len(axes) - 1)
        moved = f"margin-top:{1.1 * (place % 2 and crowded)}em{at_edge * (axis is axes[-1])}"
        words += f'<i class="x" style="left:{offset:.1%};{moved}">{escape(axis.name)}</i>'
        for at, text in _apart(axis.marks, [HEIGHT] * len(axis.marks)):
            words += f'<i style="left:{offset:.1%};top:{1 - at:.1%}">{escape(text)}</i>'
    return _figure("All parameters and the metric", lines, words, "\N{NO-BREAK SPACE}", "wide")


def workers(trials: Sequence[TrialRecord]) -> str:
    """Draw which worker trained which trial when."""
    spans = [(worker, begin, end, trial) for trial in trials for worker, begin, end in trial.spans]
    if not spans:
        return ""
    last = max(end for _, _, end, _ in spans) or 1.0
    lanes = sorted({worker for worker, *_ in spans})
    rows, words = "", ""
    for worker, begin, end, trial in spans[: 4 * MOST_POINTS]:
        colour = {FAILURE: "bad", STOPPED: "run-other"}.get(trial.status, f"run-{trial.number % 8}")
        top, width = lanes.index(worker) / len(lanes) * SIDE, max(1.0, (end - begin) / last * SIDE)
        rows += (
            f'<rect x="{begin / last * SIDE:.1f}" y="{top + 40 / len(lanes):.1f}" width="{width:.1f}" '
            f'height="{SIDE / len(lanes) * 0.9:.1f}" style="fill:var(--{colour})"><title>trial {trial.number}: '
            f"{end - begin:.2f} s</title></rect>"
        )
    for place, worker in enumerate(lanes):
        words += f'<i class="y" style="top:{(place + 0.5) / len(lanes):.1%}">worker {worker}</i>'
    words += _below(axis_of("seconds", [0.0, last]))
    return _figure("What each worker trained", rows, words, "seconds", "wide")


def _below(axis: Axis) -> str:
    shown = _apart(axis.marks, [WIDTH * len(text) for _, text in axis.marks])
    return "".join(f'<i class="x" style="left:{at:.1%}">{escape(text)}</i>' for at, text in shown)


def _beside(axis: Axis) -> str:
    shown = _apart(axis.marks, [HEIGHT] * len(axis.marks))
    return "".join(f'<i class="y" style="top:{1 - at:.1%}">{escape(text)}</i>' for at, text in shown)


def _apart(marks: Sequence[tuple[float, str]], sizes: Sequence[float]) -> list[tuple[float, str]]:
    """Return the marks without those whose text would cover that of the one before."""
    shown: list[tuple[float, str]] = []
    end = -math.inf
    for mark, size in sorted(zip(marks, sizes, strict=True)):
        if mark[0] - size / 2 >= end:
            shown.append(mark)
            end = mark[0] + size / 2
    return shown


def _figure(title: str, drawn: str, words: str, below: str, css: str = "") -> str:
    title = escape(title)
    return (
        f'<figure class="chart {css}"><figcaption>{title}</figcaption><div class="plot">'
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" aria-label="{title}">{drawn}</svg>'
        f'{words}</div><div class="axis">{escape(below)}</div></figure>'
    )


# How much each parameter matters: fANOVA, as Optuna computes it.
# Hutter et al., "An efficient approach for assessing hyperparameter importance", ICML 2014: the share of the metric's
# variance over the space that a forest of regression trees attributes to each parameter alone.

FEW = 8  # trials, with fewer of which nothing is said
MOST, TREES = 256, 16  # trials that are looked at, and trees of the forest: a second or so


def shares(trials: Sequence[TrialRecord], space: Mapping[str, Any]) -> dict[str, float] | None:
    """Return each parameter's share of the variance; None without Optuna or with too few trials."""
    names = [name for name in space if all(name in trial.configuration for trial in trials)]
    values = [trial.value for trial in trials if trial.value is not None]
    if len(values) < FEW or not names or len(set(values)) < 2:
        return None
    try:
        import optuna
        from optuna.importance import FanovaImportanceEvaluator
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {
        name: distribution(Space({name: dict(space[name]) | {"when": {}}}).parameters[name]) for name in names
    }
    study = optuna.create_study()
    for trial in trials[:: -(-len(trials) // MOST)]:
        if trial.value is not None and math.isfinite(trial.value):
            params = {name: trial.configuration[name] for name in names}
            study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=trial.value))
    with contextlib.suppress(ValueError, RuntimeError):  # of a parameter that has one value only
        return dict(
            optuna.importance.get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=TREES, seed=0))
        )
    return None


def importance(trials: Sequence[TrialRecord], space: Mapping[str, Any]) -> str:
    """Return bars of the shares, or why there are none."""
    importances = shares(trials, space)
    if importances is None:
        return (
            f"<p class=note>Shares of the variance need at least {FEW} trials that differ, and Optuna: "
            "<code>pip install 'paceline[optuna]'</code>.</p>"
        )
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="n">{share:.0%}</td><td style="width:20rem"><div style="height:.8em;'
        f'width:{share:.1%};background:var(--run-0)"></div></td></tr>'
        for name, share in importances.items()
    )
    note = "<p class=note>fANOVA: the share of the metric's variance that each has alone.</p>"
    return f"<table><tbody>{rows}</tbody></table>{note}"


CURVES, SLICES, ROWS = 200, 12, 500  # the most that are drawn and listed


def write_page(file: Path, study: Study, header: dict[str, Any], account: Account) -> None:
    """Write the page as one file that needs no network."""
    file.write_text(page(study, header, account), encoding="utf-8")


def page(study: Study, header: dict[str, Any], account: Account) -> str:
    """Return the HTML."""
    metric = str(header["metric"])
    trials = [study.trials[number] for number in sorted(study.trials)]
    valued = [trial for trial in trials if trial.value is not None]
    body = section("Summary", _summary(study, header, account))
    body += section("Best so far", _over_time(study, metric)) + section(
        "Learning curves", _curves(trials, metric), "Trials that were stopped are faint and end in a dot."
    )
    axes = _axes(study, header, valued)
    if axes and len(valued) > 1:
        body += section("Parameters", _parameters(study, metric, axes, valued))
        body += section("Importance", importance(valued, header["space"]))
    body += section("Workers", workers(trials))
    body += section("Trials", _table(study, trials, metric))
    return document(f"{header['name']}: tuned by {header['search']}", body, "paceline tune")


def _summary(study: Study, header: dict[str, Any], account: Account) -> str:
    best = study.best
    lead = (
        "No trial has a value."
        if best is None
        else (f"{header['metric']} {number(best.value, 4)} by trial {best.number}: {_settings(best)}")
    )
    summary = ". ".join(line[0].upper() + line[1:] for line in account.sentences()) + "."
    command = "<pre>paceline train best.py</pre>" if best is not None else ""
    return f'<p class="lead">{escape(lead)}</p><p class="said">{escape(summary)}</p>{command}'


def _settings(trial: TrialRecord) -> str:
    return ", ".join(f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in trial.configuration.items())


def _over_time(study: Study, metric: str) -> str:
    points = list(curve_of_best(study))
    if not points:
        return ""
    end = max((span[2] for t in study.trials.values() for span in t.spans), default=points[-1][0])
    steps = [
        points[0],
        *(p for a, b in pairwise(points) for p in ((b[0], a[1]), b)),
        (end, points[-1][1]),
    ]
    line = _line(metric, [x for x, _ in steps], [y for _, y in steps], "run-0")
    return f'<div class="charts">{chart(f"Best {metric}", [line], "seconds")}</div>'


def _line(
    label: str, x: Sequence[float], y: Sequence[float], colour: str, faint: bool = False, dots: bool = False
) -> ChartLine:
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    return ChartLine(label, colour, envelope(xs, ys, max(2, len(xs))), dots, faint)


def _curves(trials: Sequence[TrialRecord], metric: str) -> str:
    have = [trial for trial in trials if len(trial.reports) > 1][:CURVES]
    lines = [_line(f"trial {t.number}", *_points(t), f"run-{t.number % 8}", t.status == STOPPED) for t in have]
    ends = [
        _line(f"trial {t.number} stopped", [t.step], [t.reports[t.step]], f"run-{t.number % 8}", dots=True)
        for t in trials[:CURVES]
        if t.status == STOPPED and t.step in t.reports
    ]
    return f'<div class="charts">{chart(metric, [*lines, *ends], "steps", css="wide")}</div>' if lines else ""


def _points(trial: TrialRecord) -> tuple[list[float], list[float]]:
    steps = sorted(trial.reports)
    return [float(step) for step in steps], [trial.reports[step] for step in steps]


def _axes(study: Study, header: dict[str, Any], valued: Sequence[TrialRecord]) -> dict[str, Axis]:
    names = list(dict.fromkeys(name for trial in valued for name in trial.configuration))
    axes = {}
    for name in names:
        values = [trial.configuration[name] for trial in valued if name in trial.configuration]
        axes[name] = axis_of(name, values, bool(header["space"].get(name, {}).get("log")))
    return axes


def _parameters(study: Study, name: str, axes: dict[str, Axis], valued: Sequence[TrialRecord]) -> str:
    values = [trial.value for trial in valued if trial.value is not None]
    ranked = sorted(values, reverse=study.minimize)
    metric = axis_of(name, values, log=min(values) > 0 and max(values) / min(values) > 40)
    rows = [
        (
            [*(trial.configuration.get(name) for name in axes), trial.value],
            ranked.index(trial.value) / len(ranked),
            trial.number,
        )
        for trial in valued
        if trial.value is not None
    ]
    best = study.best
    slices = "".join(
        slice_of(axis, metric, [(t.configuration[name], t.value, t.number, t is best) for t in have])
        for name, axis in list(axes.items())[:SLICES]
        if (have := [t for t in valued if name in t.configuration])
    )
    return f'<div class="charts">{parallel([*axes.values(), metric], rows)}</div><div class="charts">{slices}</div>'


def _table(study: Study, trials: Sequence[TrialRecord], metric: str) -> str:
    shown = sorted(trials, key=lambda t: (t.value is None, (t.value or 0) * (1 if study.minimize else -1)))[:ROWS]
    body = "".join(_rows(shown))
    note = f"<p class=note>{len(trials) - ROWS:,} more are in the journal.</p>" if len(trials) > ROWS else ""
    heads = "".join(
        f"<th>{escape(head)}</th>" for head in ("trial", metric, "steps", "status", "seconds", "configuration")
    )
    return (
        f'<div class="scroll"><table class="rows"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _rows(trials: Sequence[TrialRecord]) -> Iterator[str]:
    for t in trials:
        reason = f": {t.reason.splitlines()[0]}" if t.reason else ""
        cells = (str(t.number), number(t.value, 4), str(t.step), t.status + reason, f"{t.seconds:.2f}", _settings(t))
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
