"""The planner's pages: what a choice rests on, and predicted beside measured. One HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from paceline.kernels.measure.picture import Point, roofline
from paceline.planning.planner.choosing import PAYS, Choice, micro
from paceline.planning.planner.validating import Validation
from paceline.runtime.report.charts import ChartLine, chart, legend, timeline
from paceline.runtime.report.curves import Envelope
from paceline.runtime.report.overview import section
from paceline.runtime.report.page import document
from paceline.runtime.report.reading import Lane, lanes
from paceline.runtime.runs.time_accounting import Time
from paceline.runtime.runs.trace import Trace

ROWS, DRAWN, LABELLED, SPANS = 60, 6, 12, 4000


def choice_page(job: str, choice: Choice) -> str:
    """The page of `paceline choose`."""
    first, *rest = choice.sentences
    lead = f'<p class="lead">{escape(first)}</p><p class="said">{escape(". ".join(rest))}</p>'
    body = section("Summary", f"{lead}<pre>{escape(choice.command)}</pre>")
    curves = scalings(choice)
    body += section("Speed-up against workers", _speed_ups(curves), " ".join(each.sentence for each in curves[:DRAWN]))
    body += section("Cost against time", _costs(choice), "The front: no other plan is faster and cheaper at once.")
    body += section("Roofline of the layers", _roofline(choice), "Predicted for one core; a point is a module.")
    body += section("Ranking", _ranking(choice)) + section("Ruled out", _ruled_out(choice))
    return document(f"{job}: {choice.plan}", body, "paceline choose")


def validation_page(validation: Validation, timelines: Sequence[tuple[str, Trace, Trace]]) -> str:
    """The page of `paceline validate`; `timelines` are plans with their predicted and their measured trace."""
    text = (
        f"Median error {validation.error:.1%}, noise floor {validation.noise:.1%}. {validation.chosen} was predicted "
        "to be the "
        f"fastest, {validation.best} was; regret {validation.regret:.1%}."
    )
    body = section("Summary", f'<p class="lead">{escape(text)}</p>')
    rows = [
        [
            c.name,
            micro(c.predicted),
            f"{micro(c.low)} to {micro(c.high)}",
            micro(c.measured),
            f"{c.error:+.1%}",
            f"{c.noise:.1%}",
        ]
        for c in validation.checks
    ]
    heads = ("plan", "predicted", "90% within", "measured", "error", "noise floor")
    body += section("Predicted and measured", _table(heads, rows))
    body += section("Timelines", "".join(_one_above_the_other(*each) for each in timelines))
    return document(f"{validation.job}: predicted and measured", body, "paceline validate")


def _one_above_the_other(plan: str, predicted: Trace, measured: Trace) -> str:
    """Two timelines over the same seconds."""
    both = lanes(predicted), lanes(measured)
    end = max((int(lane.edges[-1]) for each in both for lane in each), default=0)
    drawn = ""
    for name, each in zip(("predicted", "measured"), both, strict=True):
        drawn += f"<h4>{name}</h4>{timeline([_until(lane, end) for lane in each], (), SPANS)}"
    return f"<h3>{escape(plan)}</h3>{drawn}"


def _until(lane: Lane, end: int) -> Lane:
    """The lane with nothing more up to this time."""
    if lane.edges[-1] >= end:
        return lane
    return Lane(lane.worker, np.append(lane.edges, end), np.append(lane.kinds, int(Time.OTHER)))


def _speed_ups(curves: Sequence[Scaling]) -> str:
    lines = [
        _line(each.name, [1.0, *map(float, each.workers)], [1.0, *each.speed_ups], f"run-{place}")
        for place, each in enumerate(curves[:DRAWN])
    ]
    drawn = chart("Speed-up over the best single process", lines, "workers", css="wide")
    return f'<div class="charts">{drawn}</div>{_legend(lines)}' if lines else ""


def _costs(choice: Choice) -> str:
    """Seconds of an epoch, and its dollars, or core-seconds where there are no prices."""
    epochs = [each.seconds * choice.updates_per_epoch for each in choice.ranking]
    cores = [s * p.plan.workers * p.plan.threads for s, p in zip(epochs, choice.ranking, strict=True)]
    money = list(choice.dollars) or cores
    title = "Dollars of an epoch" if choice.dollars else "Core-seconds of an epoch"
    points = sorted(zip(epochs, money, strict=True))
    front = [point for n, point in enumerate(points) if all(point[1] < other[1] for other in points[:n])]
    drawn = (("all plans", points, "run-other", True), ("the front", front, "run-0", False))
    lines = [_line(name, [x for x, _ in p], [y for _, y in p], colour, dots) for name, p, colour, dots in drawn if p]
    return f'<div class="charts">{chart(title, lines, "seconds of an epoch", css="wide")}</div>{_legend(lines)}'


def _roofline(choice: Choice) -> str:
    layers = [each for each in choice.layers if each.flops and each.bytes and each.seconds]
    layers = sorted(layers, key=lambda each: -each.seconds)[:LABELLED]
    points = [
        Point(each.name or "(outside)", each.flops / each.bytes, each.flops / each.seconds / 1e9) for each in layers
    ]
    if not points or choice.roofs is None:
        return ""
    gflops, gigabytes = choice.roofs
    return f'<div class="charts">{roofline(points, gflops, gigabytes, "Roofline of the layers")}</div>'


def _ranking(choice: Choice) -> str:
    rows = [
        [
            p.name,
            micro(p.seconds),
            f"{micro(p.low)} to {micro(p.high)}",
            f"{p.samples_per_second:,.0f}",
            f"{p.bytes:,.0f}",
            f"{p.memory / 2**20:,.1f}",
        ]
        for p in choice.ranking[:ROWS]
    ]
    return _table(("plan", "an update", "90% within", "samples/s", "bytes sent", "MiB of a worker"), rows)


def _ruled_out(choice: Choice) -> str:
    return _table(("plan", "why"), [[each.name, each.ruled_out] for each in choice.ruled_out[:ROWS]])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _line(label: str, x: Sequence[float], y: Sequence[float], colour: str, dots: bool = False) -> ChartLine:
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    return ChartLine(label, colour, Envelope(xs, ys, ys, ys), dots)


def _legend(lines: Sequence[ChartLine]) -> str:
    return legend([(line.label, line.colour) for line in lines])


# --- How a plan's speed grows with its workers, and from where on more do not pay. Pure -------------------------------


@dataclass(frozen=True)
class Scaling:
    """One plan with several numbers of workers."""

    name: str
    workers: tuple[int, ...]
    #: Over the best single process.
    speed_ups: tuple[float, ...]

    @property
    def stops(self) -> int:
        """The number of workers from which on more are not `PAYS` times as fast; 1 where none pay."""
        best, limit = 1.0, 1
        for workers, speed in zip(self.workers, self.speed_ups, strict=True):
            if speed >= PAYS * best:
                best, limit = speed, workers
        return limit

    @property
    def sentence(self) -> str:
        """Where it stops paying, in words."""
        if self.stops == 1:
            return f"{self.name} is not worth it with any number of workers."
        most = self.workers[-1]
        speed = self.speed_ups[self.workers.index(self.stops)]
        more = "" if self.stops == most else f"; {most} are {self.speed_ups[-1]:.2f}x"
        return f"{self.name} gains from up to {self.stops} workers, {speed:.2f}x{more}."


def scalings(choice: Choice) -> list[Scaling]:
    """Return the scaling of every plan that was ranked with several numbers of workers, the fastest first.

    Of a plan with options, the fastest variant counts for each number of workers.
    """
    single = min((p.seconds for p in choice.ranking if p.plan.workers == 1), default=0.0)
    fastest: dict[str, dict[int, float]] = {}
    for each in choice.ranking:
        if each.plan.workers > 1 and single:
            mine = fastest.setdefault(each.plan.name, {})
            mine[each.plan.workers] = max(mine.get(each.plan.workers, 0.0), single / each.seconds)
    curves = [
        Scaling(name, tuple(sorted(mine)), tuple(mine[workers] for workers in sorted(mine)))
        for name, mine in fastest.items()
    ]
    return sorted(curves, key=lambda each: -max(each.speed_ups))
