"""What is shown of a run that goes on: a line per worker, from what the engine tells now and then. Pure.

Figures are those of the last seconds, so a worker that slows down is seen to. A worker that says nothing for long is
told from those who wait for it: among workers that keep step it is the one furthest behind, by its steps in meetings
and its updates; among others it is whoever is not asleep at the gate.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.runs.time_accounting import Pace, TimeAccounting
from paceline.runs.trace import Kind

WINDOW = 10.0  # seconds
SILENT = 2.0  # seconds without a row, or ten of its usual pieces of work, whichever is more
NAPS = 10  # looks in a row: whoever sleeps at the gate wakes now and then to ask again
WAITS = 0.2  # share of its time from which on a worker is called a straggler's victim


@dataclass(frozen=True)
class Worker:
    """One line."""

    number: int
    rate: float  # samples per second
    loss: float
    staleness: float
    waiting: float  # share of its time
    left: float  # seconds; 0 when it is home
    state: str  # "", "done" or "died"
    remark: str  # who is a straggler, and who waits for one


class Board:
    """Hears the engine's states one after the other."""

    def __init__(self) -> None:
        self.share = self.rate = self.seconds = self.left = 0.0
        self.updates = self.of = 0
        self.workers: list[Worker] = []
        self._tally: TimeAccounting | None = None
        self._past: deque[tuple[float, Any]] = deque()
        self._asleep: deque[list[int]] = deque(maxlen=NAPS)

    def hear(self, state: dict[str, Any]) -> None:
        if self._tally is None:
            self._tally = TimeAccounting(state["workers"])
            self._began = state["began"]
            self._heard = np.full(state["workers"], self._began)  # when each ended its last row
            self._place = [(-1, False)] * state["workers"]  # how far that was: an update, and whether past computing
            self._past.append((self._began, self._tally.sums.copy()))
        for rows in state["rows"]:
            self._tally.add(rows)
            self._remember(rows)
        self.seconds, self.updates, self.of = state["seconds"], state["updates"], state["of"]
        self.share = self.updates / self.of if self.of else 1.0
        self.left = self.seconds * (1 - self.share) / self.share if self.share else math.nan
        self._asleep.append(state["asleep"])
        self._past.append((self.seconds, self._tally.sums.copy()))
        while len(self._past) > 2 and self._past[1][0] <= self.seconds - WINDOW:
            self._past.popleft()
        since, before = self._past[0]
        self._look(state, Pace(self._tally.sums - before), max(self.seconds - since, 1e-9))

    def _remember(self, rows: Any) -> None:
        if len(rows) and rows["kind"][-1] != Kind.DEATH:
            last, worker = rows[-1], int(rows["worker"][-1])
            self._heard[worker] = last["end"] / 1e9
            self._place[worker] = (int(last["update"]), bool(last["kind"] != Kind.COMPUTE))

    def _look(self, state: dict[str, Any], pace: Pace, length: float) -> None:
        rates, loss, staleness, waiting = pace.of("samples") / length, pace.loss, pace.staleness, pace.waiting
        gone = {**dict.fromkeys(state["home"], "done"), **dict.fromkeys(state["dead"], "died")}
        self.rate = float(rates.sum())
        silent, victims = self._silent(state, gone)
        slow = {w: f"straggler: computes at {of:.0%}" for w, of in pace.stragglers().items() if w not in gone}
        # Where several are equally far behind, it may be any of them.
        name = "straggler: " if len(silent) == 1 else ""
        slow |= {w: f"{name}silent for {self.seconds - self._heard[w]:.0f} s" for w in silent}
        self.workers = []
        for worker in range(state["workers"]):
            others = [w for w in slow if w != worker]
            remark = slow.get(worker, "")
            if others and not remark and worker not in gone and (worker in victims or waiting[worker] >= WAITS):
                remark = f"waits for worker {others[0]}" + f" or {len(others) - 1} more" * (len(others) > 1)
            self.workers.append(
                Worker(
                    worker, float(rates[worker]), float(loss[worker]), float(staleness[worker]),
                    float(waiting[worker]), 0.0 if worker in gone else self.left, gone.get(worker, ""), remark,
                )
            )  # fmt: skip

    def _silent(self, state: dict[str, Any], gone: dict[int, str]) -> tuple[set[int], set[int]]:
        """(who says nothing for long and is to blame, who only waits)"""
        assert self._tally is not None
        pieces = Pace(self._tally.sums).of("pieces")
        usual = np.divide(self._heard - self._began, pieces, out=np.zeros(len(pieces)), where=pieces > 0)
        quiet = [
            worker
            for worker in range(state["workers"])
            if worker not in gone
            and pieces[worker] > 0
            and self.seconds - self._heard[worker] > max(SILENT, 10 * usual[worker])
        ]
        if state["in_step"]:
            places = {worker: (state["offers"][worker], *self._place[worker]) for worker in quiet}
            blamed = {worker for worker in quiet if places[worker] == min(places.values())}
        else:
            blamed = set(quiet).difference(*self._asleep)
        return blamed, set(quiet) - blamed
