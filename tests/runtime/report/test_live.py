"""The page that follows runs while they go on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import paceline as pl
from paceline.errors import RunFolderError, UsageError
from paceline.interfaces.cli.live_page import server
from paceline.interfaces.cli.runs import report
from paceline.runtime.report.page import LivePage
from paceline.runtime.runs.live import FILE, Heartbeat, Phase, ProcessRecord, WorkerLive, WorkerStatus, read_live
from paceline.runtime.runs.schema import to_dict, write_json
from tests.runtime.report.test_report import NASTY, job


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = pl.train(job(), "ring:workers=2", engine="virtual", folder=tmp_path).path
    assert path is not None
    return path


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with server([folder]) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/"
        finally:
            serving.shutdown()
            thread.join()


def get(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def workers() -> list[WorkerLive]:
    return [WorkerLive(0, ProcessRecord(1, 0.0), WorkerStatus.WAITING, 7)]


def test_workers_are_shown_while_a_run_goes_on_and_its_report_when_it_has_ended(run: Path) -> None:
    with served(run.parent) as address:
        with Heartbeat(run, 4000) as heart:
            heart.beat(Phase.TRAINING, 1200, workers, now=True)
            state = json.loads(get(address + "state"))
            assert state["status"] == "This run goes on."
            assert "training, 1,200 of 4,000 updates" in state["now"]
            assert "worker 0</th><td>waiting</td><td class=n>7" in state["now"]
            assert state["now"] in get(address)
        state = json.loads(get(address + "state"))
        assert (state["status"], state["now"]) == ("No run goes on: this is the whole report.", "")


def test_a_run_that_was_killed_and_a_hang_are_said(run: Path) -> None:
    (run / "hang.txt").write_text(f"worker 1 waits for worker 0 {NASTY}")
    with Heartbeat(run, 10) as heart:
        heart.beat(Phase.TRAINING, 3, workers, now=True)
        assert "role=alert>worker 1 waits for worker 0 &lt;script" in LivePage([run]).state()["now"]
        record = read_live(run)
        assert record is not None
        write_json(run / FILE, to_dict(replace(record, process=ProcessRecord(record.process.pid, 1.0))))
        assert "was killed" in LivePage([run]).state()["now"]


def test_a_report_that_takes_long_is_made_seldom_and_only_if_something_was_recorded(run: Path) -> None:
    seconds = iter([0.0, 10.0, 10.0, 20.0, 20.0, 60.0, 61.0, 62.0, 63.0])
    live = LivePage([run], lambda: next(seconds))

    def version(text: str) -> str:
        (shown,) = re.findall('data-version="(.*?)"', text)
        return str(shown)

    first = version(live.report())  # takes 10 seconds
    assert live.state()["version"] == first
    (run / "hang.txt").write_text("")
    assert live.state()["version"] == first  # not before 50 seconds
    assert version(live.report()) == first
    assert version(live.report()) != first
    assert live.state()["version"] != first


def test_only_this_machine_under_its_own_name_is_answered(run: Path) -> None:
    with served(run) as address:
        for path, host, code in (("state", "example.org:80", 403), ("../job.pickle", "localhost:80", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(address + path, Host=host)
            assert refused.value.code == code
            refused.value.close()


def test_what_cannot_be_served_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="writes no file"):
        report([run], output=tmp_path / "x.html", live=True)
    with pytest.raises(UsageError, match="add --live"):
        report([run], port=8000)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match=r"no run\.json"):
        server([tmp_path / "empty"])
    with server([run]) as taken, pytest.raises(UsageError, match="another one"):
        server([run], taken.server_port)


def test_the_page_in_a_browser_takes_over_what_is_new(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine to open the page with")
    state = LivePage.state
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    with served(run) as address, Heartbeat(run, 4000) as heart:

        def later(live: LivePage) -> dict[str, str]:
            heart.beat(Phase.TRAINING, 2400, workers, now=True)
            (run / "hang.txt").write_text("worker 1 waits")
            return state(live)

        monkeypatch.setattr(LivePage, "state", later)
        heart.beat(Phase.TRAINING, 1200, workers, now=True)
        options = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000", "--dump-dom", address]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert "2,400 of 4,000 updates" in done.stdout  # in the state, which is asked for every two seconds
    assert done.stdout.count("worker 1 waits") == 2  # and in the report, which is as new
    assert done.stdout.count('id="live"') == 1
