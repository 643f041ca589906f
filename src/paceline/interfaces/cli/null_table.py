"""What `paceline bench null` measured, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.interfaces.api.planning.null_model import NullModel, NullStep


def table(benchmark: NullModel) -> str:
    """Write one row for each case and number of workers, then what could not be trained, then the paper's figures."""
    from paceline.interfaces.api.planning.null_model import PLANS, PUBLISHED

    lines = [
        f"A null step of one worker in ms (least to most of the rounds), on {benchmark.cores} cores:",
        "",
        "| case | workers | " + " | ".join(f"{mode}, `{name}`" for mode, name in PLANS.items()) + " | MB a step |",
        "|---|---:|" + "---:|" * (len(PLANS) + 1),
    ]
    rows = dict.fromkeys((step.case, step.workers) for step in benchmark.steps)
    for case, workers in rows:
        mine = {s.mode: s for s in benchmark.steps if (s.case, s.workers) == (case, workers)}
        cells = [_cell(mine.get(mode)) for mode in PLANS]
        sent = max(step.bytes for step in mine.values()) / 1e6
        lines.append(f"| {case} | {workers} | " + " | ".join(cells) + f" | {sent:.3g} |")
    whys = dict.fromkeys((each.case, each.mode, each.why) for each in benchmark.refused)
    lines += ["", *(f"Not measured: {case}, {mode}: {why}" for case, mode, why in whys)]
    lines += ["", "TensorFlow's paper, 16 servers on other machines, with 1 and with 100 workers in step:", ""]
    lines += [f"- {case}: {first:,.4g} and {last:,.4g} ms" for case, (first, last) in PUBLISHED.items()]
    return "\n".join(lines)


def _cell(step: NullStep | None) -> str:
    if step is None:
        return "-"
    return f"{step.step * 1e3:.3g} ({step.low * 1e3:.3g} to {step.high * 1e3:.3g})"
