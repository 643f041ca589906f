"""Progress while workers train: one line redrawn on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

PLAIN_EVERY = 5.0  # seconds


class Progress:
    def __init__(self, name: str) -> None:
        self.name = name
        self.live = sys.stderr.isatty()
        self._said = time.monotonic()

    def __call__(self, state: dict[str, Any]) -> None:
        if self.live:
            sys.stderr.write("\r\x1b[2K" + self._line(state)[:79])
            sys.stderr.flush()
        elif time.monotonic() - self._said > PLAIN_EVERY:
            self._said = time.monotonic()
            sys.stderr.write(self._line(state) + "\n")
            sys.stderr.flush()

    def _line(self, state: dict[str, Any]) -> str:
        rate = state["samples"] / state["seconds"] if state["seconds"] else 0.0
        share = state["updates"] / state["of"] if state["of"] else 1.0
        left = state["seconds"] * (1 - share) / share if share else 0.0
        loss = "" if state["loss"] is None else f"  loss {state['loss']:.3f}"
        dead = f"  dead: {state['dead']}" if state["dead"] else ""
        return f"{self.name}  {share:4.0%}  {rate:,.0f} samples/s{loss}  {left:.0f} s left{dead}"

    def close(self) -> None:
        if self.live:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
