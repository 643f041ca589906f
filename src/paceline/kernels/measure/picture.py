"""A roofline: how fast each step is, over how much it computes with each byte, under the two roofs of the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 64, 24, 24, 48
APART, LINE = 140, 12  # of labels: less to the side, they would be written over one another
INK, SOFT, MINE, ROOF = "#24292f", "#d0d7de", "#0b6bcb", "#c4432b"


@dataclass(frozen=True)
class Point:
    """A measured step."""

    name: str
    intensity: float  # FLOP per byte
    gflops: float


def roofline(points: Sequence[Point], gflops: float, gigabytes: float, title: str) -> str:
    """An SVG; both axes are logarithmic."""
    low_x, high_x = 0.25, max([64.0, *(p.intensity for p in points)]) * 1.5
    low_y, high_y = min([1.0, *(p.gflops for p in points)]) * 0.7, gflops * 1.6

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(max(value, low_x) / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low_y) / math.log(high_y / low_y)

    knee = gflops / gigabytes
    roof = f"M{x(low_x):.1f},{y(low_x * gigabytes):.1f} L{x(knee):.1f},{y(gflops):.1f} L{x(high_x):.1f},{y(gflops):.1f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        *_grid(x, y, (low_x, high_x), (low_y, high_y)),
        f'<path d="{roof}" fill="none" stroke="{ROOF}" stroke-width="2"/>',
        f'<text x="{x(high_x) - 4:.1f}" y="{y(gflops) - 6:.1f}" text-anchor="end">multiply-adds: {gflops:.0f} GFLOP/s'
        "</text>",
        f'<text x="{x(low_x * 1.1):.1f}" y="{y(low_x * gigabytes) - 8:.1f}">memory: {gigabytes:.0f} GB/s</text>',
    ]
    labels: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: p.gflops):
        cx, cy, name = x(point.intensity), y(point.gflops), escape(point.name)
        below = cy + 4
        while any(abs(cx - left) < APART and abs(below - top) < LINE for left, top in labels):
            below += 1
        labels.append((cx, below))
        parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{MINE}"><title>{name}</title></circle>')
        parts.append(f'<text x="{cx + 7:.1f}" y="{below:.1f}">{name}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">FLOP per byte touched</text>')
    turned = f'text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})"'
    parts.append(f'<text x="14" y="{HEIGHT / 2}" {turned}>GFLOP/s, one core</text>')
    return "\n".join([*parts, "</svg>", ""])


def _grid(x, y, xs: tuple[float, float], ys: tuple[float, float]) -> list[str]:  # type: ignore[no-untyped-def]
    lines = []
    for power in range(-4, 12):
        value = 2.0**power
        if xs[0] <= value <= xs[1]:
            lines.append(f'<path d="M{x(value):.1f},{TOP} V{HEIGHT - BOTTOM}" stroke="{SOFT}"/>')
            lines.append(f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{value:g}</text>')
        if ys[0] <= value <= ys[1]:
            lines.append(f'<path d="M{LEFT},{y(value):.1f} H{WIDTH - RIGHT}" stroke="{SOFT}"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    return lines
