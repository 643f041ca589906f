"""`paceline watch`: watch a command that it starts, a process or a run until the end, and act on a hang."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.run import check_paths
from paceline.concurrency.watcher.files import BLOCK, Share, Trace
from paceline.concurrency.watcher.processes.proc import may_be_read
from paceline.concurrency.watcher.processes.stacks import environment
from paceline.concurrency.watcher.report import Confirmed, HangReport
from paceline.concurrency.watcher.samples import Frame
from paceline.concurrency.watcher.watch import Watch, pace
from paceline.errors import UsageError
from paceline.runtime.runs.live import HANG, EventKind, EventLog, RunEvent, read_live

# What `paceline check` says of the lines at which a program hangs, and what the hang says to the checker.

FILE = "findings.json"  # of a snapshot
_RANKS = re.compile(r"of (\d+) ranks\b")
#: The watcher is no judge of style: it quotes what the checker says at any confidence, and keeps no cache of it.
_OPTIONS = Options(min_confidence=0.0, cache=False, jobs=1)


def with_findings(report: HangReport) -> HangReport:
    """Return a report with the checker's findings about its lines, where their source is at hand."""
    lines = {(frame.file, frame.line) for frame in _frames(report)}
    files = sorted({file for file, _ in lines if file.endswith(".py") and Path(file).is_file()})
    findings = [
        Confirmed(place.path, place.line, place.rule, place.message, place.fingerprint)
        for file in files
        for finding in check_paths([Path(file)], _OPTIONS).findings
        for place in finding.places
        if any((file, line) in lines for line in _lines(place)) and _fits(place.message, report.ranks)
    ]
    return replace(report, findings=tuple(dict.fromkeys(findings)))


def _fits(message: str, ranks: int) -> bool:
    """Whether a finding is about a job of as many ranks as hang: the checker tries several numbers of them."""
    tried = _RANKS.match(message)
    return tried is None or not ranks or int(tried[1]) == ranks


def save_findings(report: HangReport, folder: Path) -> None:
    """Keep the checker's findings in a snapshot, which is opened where the source may not be at hand."""
    (folder / FILE).write_text(json.dumps([each._asdict() for each in report.findings], indent=1))


def with_saved_findings(report: HangReport, folder: Path) -> HangReport:
    """Return a report with the findings that a snapshot keeps."""
    file = folder / FILE
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return replace(report, findings=tuple(Confirmed(**each) for each in rows))


def add_verdicts(report: HangReport, feedback: Path) -> int:
    """Append to a file of verdicts that the findings of a report are true; return how many were not there yet."""
    verdicts = feedback.read_text(encoding="utf-8") if feedback.is_file() else ""
    hung = datetime.fromtimestamp(report.span.since).strftime("%Y-%m-%d %H:%M:%S")
    new = [each for each in report.findings if f"{each.fingerprint} true" not in verdicts]
    with feedback.open("a", encoding="utf-8") as file:
        file.writelines(f"{each.fingerprint} true {each.rule}  # hung at {hung}, line {each.line}\n" for each in new)
    return len(new)


def _frames(report: HangReport) -> Iterator[Frame]:
    """Iterate over the lines of the cause: what the checker says of a victim's explains nothing."""
    for process in (each for each in report.processes if each.role == "cause"):
        frames = [process.at, *(thread.at for thread in process.threads)]
        yield from (frame for frame in frames if frame is not None)


def _lines(finding: Finding) -> tuple[int, ...]:
    return (finding.line, *(step.line for step in finding.story))


TERMINATED = 143  # exit code


@dataclass(frozen=True)
class Actions:
    """What is done about a hang."""

    tell: Callable[[str], None]
    kill_after: float | None = None  # seconds after the block
    command: str | None = None  # for the shell; reads the report as JSON
    save: Path | None = None
    show: Callable[[str], None] | None = None  # the live screen
    share: Path | None = None  # where the watchers of several machines meet
    run: Path | None = None  # the run of Paceline that is watched
    feedback: Path | None = None  # the checker's file of verdicts


@dataclass
class WatchOutcome:
    """What came of watching."""

    reports: list[HangReport] = field(default_factory=list)
    exit_code: int | None = None  # of the command; None if it was ended, or is none of the watcher's children
    verdict: str = "ended"
    probability: float = 1.0

    @property
    def code(self) -> int:
        """The command's own exit code, but 1 for a hang; 128 + N for signal N, as in shells."""
        if self.reports:
            return 1
        return 128 - self.exit_code if self.exit_code is not None and self.exit_code < 0 else self.exit_code or 0

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return {
            "hung": bool(self.reports),
            "exit_code": self.exit_code,
            "verdict": self.reports[-1].verdict if self.reports else self.verdict,
            "probability": self.reports[-1].probability if self.reports else self.probability,
            "reports": [report.to_dict() for report in self.reports],
        }


@dataclass(frozen=True)
class WatchTarget:
    """What to watch, as the command line says: exactly one of the first four."""

    command: tuple[str, ...] = ()
    pid: int | None = None
    run: Path | None = None
    snapshot: Path | None = None
    seconds: float | None = None


def watch_target(target: WatchTarget, actions: Actions) -> WatchOutcome:
    """Watch what the command line names."""
    modes = [target.command or None, target.pid, target.run, target.snapshot]
    if sum(each is not None for each in modes) != 1:
        raise UsageError(
            "give one of `-- COMMAND`, --pid PID, --run RUN and --open DIR: paceline watch -- python train.py"
        )
    if target.command and target.seconds is not None:
        raise UsageError("--seconds goes with --pid or --run; a command is watched until it ends")
    if target.command:
        return watch_command(target.command, actions)
    if target.pid is not None:
        return watch_process(target.pid, actions, target.seconds)
    if target.run is not None:
        return watch_run(target.run, actions, target.seconds)
    assert target.snapshot is not None
    return open_snapshot(target.snapshot, actions)


def open_snapshot(folder: Path, actions: Actions) -> WatchOutcome:
    """Judge the trace of a snapshot folder again, and tell what is found."""
    outcome = WatchOutcome([with_saved_findings(each, folder) for each in Trace.load(folder).judge()[:1]])
    actions.tell(outcome.reports[0].text() if outcome.reports else "nothing in this trace hangs")
    return outcome


def watch_command(command: Sequence[str], actions: Actions) -> WatchOutcome:
    """Start a command and watch it until it ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it puts in the background without it
    with tempfile.TemporaryDirectory(prefix="paceline-watch-") as folder, _started(command, Path(folder)) as process:
        watch = Watch(process.pid, Path(folder), share=_share(actions))
        try:
            outcome = _follow(watch, actions, lambda: process.poll() is None)
            outcome.exit_code = process.wait()
        except BaseException:  # Ctrl-C, SIGTERM: nothing that it started outlives the watcher
            _end(process, watch)
            raise
    return outcome


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment(folder, os.environ))
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error


def watch_process(pid: int, actions: Actions, seconds: float | None = None) -> WatchOutcome:
    """Watch a process and its descendants until it hangs, ends, or a time is over."""
    if pid < 1 or not Path(f"/proc/{pid}").exists():
        raise UsageError(f"--pid {pid}: there is no such process on this machine; `ps -e` lists those that run")
    if not may_be_read(pid):
        raise UsageError(
            f"--pid {pid}: what its threads wait for may not be read; watch it as its own user with "
            "kernel.yama.ptrace_scope 0, or as root; or start it by `paceline watch -- COMMAND`"
        )
    return _until_hung(Watch(pid, share=_share(actions)), actions, seconds)


def watch_run(run: Path, actions: Actions, seconds: float | None = None) -> WatchOutcome:
    """Watch the processes of a run of Paceline until it hangs, ends, or a time is over."""
    live = read_live(run)
    if live is None or not live.process.alive:
        raise UsageError(f"--run {run}: no run is active there; name the folder of one that is")
    watch = Watch(live.process.pid, names=lambda: _workers(run), share=_share(actions))
    return _until_hung(watch, replace(actions, run=run), seconds)


def _share(actions: Actions) -> Share | None:
    return Share(actions.share) if actions.share is not None else None


def _workers(run: Path) -> Mapping[int, str]:
    live = read_live(run)
    return {each.process.pid: f"worker {each.number}" for each in live.workers} if live else {}


def _until_hung(watch: Watch, actions: Actions, seconds: float | None) -> WatchOutcome:
    deadline = time.monotonic() + seconds if seconds is not None else None
    return _follow(watch, actions, lambda: deadline is None or time.monotonic() < deadline, once=True)


def _follow(watch: Watch, actions: Actions, goes_on: Callable[[], bool], once: bool = False) -> WatchOutcome:
    try:
        return _ticking(watch, actions, goes_on, once)
    finally:
        watch.close()


def _ticking(watch: Watch, actions: Actions, goes_on: Callable[[], bool], once: bool) -> WatchOutcome:
    """Tick until the end; with `once` until the first hang, unless that is to be ended."""
    outcome = WatchOutcome()
    started, kill_at = time.monotonic(), None
    while goes_on() or kill_at is not None:
        report = watch.tick()
        if watch.ended:
            if once and not outcome.reports and actions.run is None:  # a run's own page says how it ended
                actions.tell("it ended without a hang")
            return outcome
        if report is not None and not outcome.reports:
            report = with_findings(report)
            outcome.reports.append(report)
            _act(report, watch, actions)
            if actions.kill_after is not None:
                kill_at = time.monotonic() + actions.kill_after
            elif once:
                return outcome
        if kill_at is not None and time.monotonic() >= kill_at:
            actions.tell(f"ended it with SIGKILL, {actions.kill_after:g} s after it was found to hang")
            watch.kill()
            return outcome
        if actions.show is not None:
            actions.show(watch.screen())
        pace(started)
    if once:
        outcome.verdict, outcome.probability = watch.verdict()
        actions.tell("nothing hung so far")
    return outcome


def _act(report: HangReport, watch: Watch, actions: Actions) -> None:
    actions.tell(report.text())
    if actions.run is not None and actions.run.is_dir():
        record_in_run(report, actions.run)
    if actions.feedback is not None and report.findings:
        new = add_verdicts(report, actions.feedback)
        actions.tell(f"{new} of the checker's findings confirmed in {actions.feedback}")
    if actions.save is not None:
        actions.save.mkdir(parents=True, exist_ok=True)
        (actions.save / BLOCK).write_text(report.text() + "\n", encoding="utf-8")
        watch.trace.save(actions.save)
        save_findings(report, actions.save)
        again = f"paceline watch --open {shlex.quote(str(actions.save))}"
        actions.tell(f"saved to {actions.save}: `{again}` shows it again")
    if actions.command is not None:
        done = subprocess.run(actions.command, shell=True, input=json.dumps(report.to_dict()), text=True)
        if done.returncode:
            actions.tell(f"--exec ended with code {done.returncode}")


def record_in_run(report: HangReport, run: Path) -> None:
    """Write a report into the folder of a run, and an event for each process that is the cause."""
    (run / HANG).write_text(report.text() + "\n", encoding="utf-8")
    log = EventLog(run)
    for each in report.processes:
        if each.role == "cause":
            at = f" at {each.at.file}:{each.at.line}" if each.at is not None else ""
            why = f"{report.verdict}: {each.label} waits for {each.waits_for}{at}"
            log.add(RunEvent(EventKind.HUNG, report.span.since, pid=each.pid, why=why))
    log.close()


def _end(process: subprocess.Popen[bytes], watch: Watch) -> None:
    """End a command that is watched no longer: kindly at first."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        watch.kill()
        process.wait()
