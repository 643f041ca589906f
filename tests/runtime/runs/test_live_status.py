"""What the terminal shows of a run that goes on: the straggler by name, its victims as such, in 80 columns."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rich.console import Console
from torch import nn

import paceline as pl
from paceline.interfaces.callbacks.progress_bar import ProgressBar
from paceline.interfaces.testing.killing import worker_processes
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World, simulate
from paceline.runtime.runs.progress import LiveStatus, Progress
from paceline.runtime.runs.time_accounting import Time, idling, spans
from paceline.runtime.runs.trace import Kind, Row, Trace


def report(rows: Trace, seconds: float, **more: Any) -> Progress:
    """What an engine reports, of three workers."""
    known = Progress(
        updates=30,
        total_updates=120,
        samples=3000,
        seconds=seconds,
        loss=None,
        workers=3,
        finished=(),
        dead=(),
        asleep=(),
        collective_steps=(0, 0, 0),
        in_step=True,
        resumed_updates=0,
        resumed_seconds=0.0,
        stopping=False,
        rows=tuple(rows.rows[rows.rows["worker"] == worker] for worker in range(3)),
    )
    return replace(known, **more)


def simulated(plan: str) -> Trace:
    """Three workers, of which the last computes half as fast."""
    chosen = Plan.parse(plan)
    world = World(compute=1e-3, speeds=(1.0, 1.0, 0.5), jitter=0.0, latency=0.0, update=0.0)
    return simulate(chosen, chosen.agenda(3000, 100, 4), world)


def test_the_straggler_is_who_computes_slowly_and_not_who_waits() -> None:
    status = LiveStatus()
    status.update(report(simulated("ring:workers=3"), 8.0))
    first, second, last = status.workers
    assert last.remark == "straggler: computes at 50%"
    assert first.remark == second.remark == "waits for worker 2"
    assert last.waiting < 0.01
    assert first.waiting == pytest.approx(0.5, abs=0.02)
    assert first.rate == pytest.approx(last.rate, rel=0.05)  # they keep step, so it does not show in how far they get
    assert status.left == pytest.approx(24.0)


def test_under_an_asynchronous_plan_nobody_is_a_victim() -> None:
    status = LiveStatus()
    status.update(report(simulated("downpour:workers=3"), 5.0, in_step=False))
    assert [bool(worker.remark) for worker in status.workers] == [False, False, True]
    assert status.workers[0].rate == pytest.approx(2 * status.workers[2].rate, rel=0.1)


def test_of_two_workers_the_slower_is_named() -> None:
    rows = [Row(Kind.COMPUTE, w, n, end=(1 + w) * 10**7, samples=100, value=1.0) for w in (0, 1) for n in range(12)]
    status = LiveStatus()
    status.update(report(Trace.of(rows), 1.0, workers=2))
    assert [worker.remark for worker in status.workers] == ["", "straggler: computes at 50%"]


def test_who_computed_nothing_and_did_not_die_is_idle() -> None:
    rows = Trace.of([Row(Kind.COMPUTE, 0, 0, samples=10), Row(Kind.STAGE, 3, 0), Row(Kind.DEATH, 2, 0)]).rows
    assert idling(rows, 5) == (1, 4)
    assert idling(rows, 1) == ()


def test_equal_workers_get_no_remark() -> None:
    rows = [Row(Kind.COMPUTE, w, n, end=10**7 + w * 10**6, samples=100, value=1.0) for w in range(3) for n in range(12)]
    status = LiveStatus()
    status.update(report(Trace.of(rows), 1.0))
    assert {worker.remark for worker in status.workers} == {""}


def test_figures_are_those_of_the_last_seconds() -> None:
    """A worker that was quick for long and is slow now is a straggler now."""
    status = LiveStatus()
    for second in range(60):
        lengths = (10**7, 10**7, 10**7 if second < 40 else 10**8)
        rows = [
            Row(Kind.COMPUTE, w, second, start=(at := second * 10**9), end=at + lengths[w], samples=10, value=1.0)
            for w in range(3)
        ]
        status.update(report(Trace.of(rows), second + 1.0))
        if second < 40:
            assert status.workers[2].remark == ""
    assert status.workers[2].remark == "straggler: computes at 10%"


def test_the_one_furthest_behind_is_silent_and_the_others_wait() -> None:
    rows = [Row(Kind.APPLY, w, 0, 0, 0, 1, end=10**8) for w in range(3)]
    rows += [Row(Kind.COMPUTE, w, 1, end=2 * 10**8, samples=10, value=1.0) for w in (0, 2)]
    rows = [Row(Kind.COMPUTE, w, 0, end=5 * 10**7, samples=10, value=1.0) for w in range(3)] + rows
    status = LiveStatus()
    status.update(report(Trace.of(sorted(rows, key=lambda row: row.end)), 9.0))
    assert [w.remark for w in status.workers] == [
        "waits for worker 1",
        "straggler: silent for 9 s",
        "waits for worker 1",
    ]


def test_the_steps_of_a_meeting_tell_apart_who_is_in_it() -> None:
    rows = [Row(Kind.COMPUTE, w, 0, end=10**8, samples=10, value=1.0) for w in range(3)]
    status = LiveStatus()
    status.update(report(Trace.of(rows), 9.0, collective_steps=(5, 4, 5)))
    assert [w.remark for w in status.workers] == [
        "waits for worker 1",
        "straggler: silent for 9 s",
        "waits for worker 1",
    ]
    status.update(report(Trace.of([]), 9.1, collective_steps=(4, 4, 5)))
    assert [w.remark for w in status.workers] == ["silent for 9 s", "silent for 9 s", "waits for worker 0 or 1 more"]


def test_a_worker_asleep_at_the_gate_is_a_victim() -> None:
    rows = [Row(Kind.COMPUTE, w, w, end=10**8, samples=10, value=1.0) for w in range(3)]
    status = LiveStatus()
    status.update(report(Trace.of(rows), 9.0, in_step=False, asleep=(0, 2)))
    assert [w.remark for w in status.workers] == [
        "waits for worker 1",
        "straggler: silent for 9 s",
        "waits for worker 1",
    ]


def test_who_is_home_or_dead_is_said() -> None:
    status = LiveStatus()
    status.update(report(simulated("downpour:workers=3"), 5.0, in_step=False, finished=(0,), dead=(2,)))
    assert [worker.state for worker in status.workers] == ["done", "", "died"]
    assert status.workers[2].remark == ""


def test_a_place_that_no_machine_has_taken_yet_is_not_shown() -> None:
    status = LiveStatus()
    rows = [Row(Kind.COMPUTE, w, w, end=10**8, samples=10, value=1.0) for w in range(2)]
    status.update(report(Trace.of(rows), 1.0, in_step=False, dead=(1, 2)))
    assert [(worker.number, worker.state) for worker in status.workers] == [(0, ""), (1, "died")]


@pytest.mark.parametrize("plan", ["ring", "ssp:bound=1"])
def test_a_stopped_worker_is_named_while_the_run_goes_on(plan: str, tmp_path: Path) -> None:
    calls, flag = [0], str(tmp_path / "stopped")

    def stops_once(batch: Any) -> Any:
        """The first worker to take its twentieth batch stops as it computes."""
        calls[0] += 1
        if calls[0] == 20 and not os.path.exists(flag):
            with contextlib.suppress(FileExistsError), open(flag, "x"):
                os.kill(os.getpid(), signal.SIGSTOP)
        return batch

    x = torch.randn(200, 8)
    job = pl.Job(
        lambda: nn.Linear(8, 3),
        (x, x.argmax(1) % 3),
        loss=nn.CrossEntropyLoss(),
        epochs=10**5,
        batch_size=10,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_transform=stops_once,
    )
    status, stopped = LiveStatus(), list[int]()

    def progress(state: Progress) -> None:
        status.update(state)
        if any("silent" in worker.remark for worker in status.workers):
            stopped.extend(n for n, p in enumerate(worker_processes()) if p.status() == psutil.STATUS_STOPPED)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pl.train(job, plan, workers=3, folder=None, progress=progress)
    (who,) = stopped
    for worker in status.workers:
        if worker.number == who:
            assert worker.remark.startswith("straggler: silent for")
        else:
            assert "silent" not in worker.remark


def shown(display: ProgressBar, screen: io.StringIO, reports: list[Progress]) -> str:
    for one in reports:
        display.on_update_end(None, one)
    display.close()
    return screen.getvalue()


def test_the_picture_fits_80_columns() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24, force_terminal=True, color_system=None)
    display = ProgressBar("a_job_with_a_name_that_goes_on by hierarchical:workers=4,groups=2", console=console)
    rows = simulated("ring:workers=3")
    display.status.update(report(rows, 8.0))
    console.print(display.picture())
    lines = screen.getvalue().rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 80
    assert "straggler: computes at 50%" in lines[5]
    assert len(lines) == 6


def test_on_a_small_screen_the_straggler_is_among_those_shown() -> None:
    console = Console(file=io.StringIO(), width=80, height=7, force_terminal=True)
    display = ProgressBar("job", console=console)
    display.status.update(report(simulated("ring:workers=3"), 8.0))
    assert [worker.number for worker in display._shown()] == [0, 2]


def test_a_file_gets_plain_lines_at_calm_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("paceline.interfaces.callbacks.progress_bar.time.monotonic", lambda: now[0])
    screen = io.StringIO()
    display = ProgressBar("job [b]by[/b] ring", console=Console(file=screen, width=80))
    nothing, said = Trace.of([]), []
    display.on_update_end(None, report(simulated("ring:workers=3"), 8.0))
    for second in range(1, 200):
        now[0] = float(second)
        before = len(screen.getvalue())
        display.on_update_end(None, report(nothing, 8.0 + second))
        said += [second] if len(screen.getvalue()) > before else []
    text = shown(display, screen, [])
    assert said == [5, 15, 35, 75, 135, 195]
    assert "\x1b" not in text
    assert text.startswith("job [b]by[/b] ring  25% of 120 updates")
    assert "worker 2" in text


def test_quiet_says_nothing() -> None:
    screen = io.StringIO()
    display = ProgressBar("job", quiet=True, console=Console(file=screen, force_terminal=True))
    assert shown(display, screen, [report(simulated("ring:workers=3"), 8.0)]) == ""


def test_spans_put_the_gate_before_and_other_waits_first_within() -> None:
    rows = Trace.of(
        [
            Row(Kind.COMPUTE, 0, 0, start=100, end=200, waited=30),
            Row(Kind.COLLECTIVE, 0, 0, start=200, end=260, waited=20),
            Row(Kind.APPLY, 0, 0, start=260, end=300),
            Row(Kind.SNAPSHOT, 0, 0, start=300, end=400),
        ]
    ).rows
    found = sorted(zip(*(part.tolist() for part in spans(rows)), strict=True))
    assert found == [
        (70, 100, Time.WAIT),
        (100, 200, Time.COMPUTE),
        (200, 220, Time.WAIT),
        (220, 260, Time.COMMUNICATE),
        (260, 300, Time.UPDATE),
    ]
