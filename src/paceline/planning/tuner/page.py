"""The page of a tuning: the best so far over time, learning curves with their stops, slices, and the workers' time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.planning.tuner.account import Account
from paceline.planning.tuner.importance import importance
from paceline.planning.tuner.pictures import Axis, axis_of, parallel, slice_of, workers
from paceline.planning.tuner.study import STOPPED, Study, TrialRecord, curve_of_best
from paceline.runtime.report.charts import Line, chart
from paceline.runtime.report.curves import envelope
from paceline.runtime.report.formatting import number
from paceline.runtime.report.overview import section
from paceline.runtime.report.page import document

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
) -> Line:
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    return Line(label, colour, envelope(xs, ys, max(2, len(xs))), dots, faint)


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
