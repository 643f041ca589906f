"""Rewrite the README's picture and table from the rounds of benchmarks/local_speed: python docs/_site/figures.py"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROUNDS = ROOT / "benchmarks" / "local_speed" / "rounds.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
README = ROOT / "README.md"
START, END = "<!-- speed -->\n", "<!-- end of speed -->"
SINGLE = ("one process, 1 thread", "one process, 2 threads")
SIZES = {"55 thousand": "55 thousand parameters", "1 million": "961 thousand", "11 million": "11 million"}
#: By the name in the rounds: those of the picture, and those that only the table has.
SHOWN = {
    "ddp": "PyTorch DDP over gloo",
    "ring, default": "Paceline, `ring` (synchronous)",
    "downpour, default": "Paceline, `downpour` (asynchronous)",
}
PLANS = SHOWN | {
    "sequential, default": "Paceline, one process",
    "ring": "`ring` by autograd",
    "downpour": "`downpour` by autograd",
}


class Speed(NamedTuple):
    """Samples per second relative to the best single process of the same round: median and range over the rounds."""

    middle: float
    least: float
    most: float


def _rounds(size: str) -> list[dict[str, float]]:
    """Return the samples per second of each round in which no other program ran."""
    rounds = [json.loads(line) for line in ROUNDS.read_text().splitlines()]
    return [each["speeds"] for each in rounds if each["size"] == size and not each["neighbours"]]


def _singles() -> dict[str, list[float]]:
    """Return the samples per second of the best single process in each round, by size."""
    return {size: [max(each[name] for name in SINGLE) for each in _rounds(size)] for size in SIZES}


def speeds() -> dict[str, dict[str, Speed]]:
    """Return the relative speed of each plan at each size."""
    table: dict[str, dict[str, Speed]] = {}
    for size, singles in _singles().items():
        for plan in PLANS:
            ratios = [each[plan] / single for each, single in zip(_rounds(size), singles, strict=True)]
            table.setdefault(size, {})[plan] = Speed(median(ratios), min(ratios), max(ratios))
    return table


def rows() -> str:
    """Return the table in Markdown."""
    table = speeds()
    lines = [f"| samples per second, relative | {' | '.join(SIZES.values())} |", "|---|---:|---:|---:|"]
    singles = " | ".join(f"1 ({median(each):,.0f} per second)" for each in _singles().values())
    lines.append(f"| one PyTorch process, best of 1 and 2 threads | {singles} |")
    for plan, name in PLANS.items():
        cells = [f"{s.middle:.2f} ({s.least:.2f} to {s.most:.2f})" for s in (table[size][plan] for size in SIZES)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


STYLE = """<style>
  text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
  .ddp { fill: #8c959f } .ring { fill: #54aeff } .downpour { fill: #0969da }
  line { stroke: #24292f } .one { stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } line { stroke: #e6edf3 }
    .ddp { fill: #656c76 } .ring { fill: #388bfd } .downpour { fill: #79c0ff }
  }
</style>"""
LEFT, HEIGHT, BASE, BAR, STEP = 60, 170, 215, 34, 44
CAPTION = "samples per second, relative to the best single PyTorch process (dashed)"


def picture() -> str:
    """Return the same as bars with the range of the rounds."""
    table = {size: {plan: plans[plan] for plan in SHOWN} for size, plans in speeds().items()}
    unit = HEIGHT / max(speed.most for plans in table.values() for speed in plans.values())
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 290" role="img" aria-labelledby="title">',
        '<title id="title">Samples per second relative to the best single PyTorch process, two workers on two cores: '
        "medians and ranges at three sizes of one network. The README's table has the figures.</title>",
        STYLE,
        f'<line class="one" x1="{LEFT}" y1="{BASE - unit:.1f}" x2="630" y2="{BASE - unit:.1f}"/>',
        f'<text x="4" y="{BASE - unit + 4:.1f}">1.00 x</text>',
        f'<text class="small" x="4" y="14">{CAPTION}</text>',
    ]
    for group, (size, plans) in enumerate(table.items()):
        left = LEFT + 15 + 190 * group
        parts.append(f'<text x="{left}" y="{BASE + 20}">{SIZES[size].removesuffix(" parameters")} parameters</text>')
        for number, (plan, speed) in enumerate(plans.items()):
            parts += _bar(_colour(plan), speed, left + STEP * number, unit)
    for number, (plan, name) in enumerate(SHOWN.items()):
        x = LEFT + 15 + 190 * number
        parts.append(f'<rect class="{_colour(plan)}" x="{x}" y="{BASE + 42}" width="12" height="12"/>')
        parts.append(f'<text x="{x + 18}" y="{BASE + 53}">{name.replace("`", "").partition(" (")[0]}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _colour(plan: str) -> str:
    return plan.partition(",")[0]


def _bar(colour: str, speed: Speed, x: float, unit: float) -> list[str]:
    top, middle, high = BASE - unit * speed.middle, x + BAR / 2, BASE - unit * speed.most
    label = min(high, BASE - unit) - 5  # above the dashed line
    return [
        f'<rect class="{colour}" x="{x}" y="{top:.1f}" width="{BAR}" height="{unit * speed.middle:.1f}"/>',
        f'<line x1="{middle}" y1="{high:.1f}" x2="{middle}" y2="{BASE - unit * speed.least:.1f}"/>',
        f'<text class="small" x="{middle}" y="{label:.1f}" text-anchor="middle">{speed.middle:.2f}</text>',
    ]


def readme() -> str:
    """Return the README with the table as it is now."""
    before, _, rest = README.read_text().partition(START)
    return before + START + "\n" + rows() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PICTURE.write_text(picture())
    README.write_text(readme())
